// node mailparser.js FOLDER: {file: what a mail program would show} of every *.eml, judged by mailparser.
const fs = require('fs');
const path = require('path');
const crypto = require('crypto');
const { simpleParser } = require('mailparser');

// address objects, or a list of them where the field stands twice
const boxes = found => [].concat(found || []).flatMap(one => one.value).map(one => [one.name, one.address || '']);

(async () => {
    const shown = {};
    for (const file of fs.readdirSync(process.argv[2]).filter(name => name.endsWith('.eml'))) {
        const mail = await simpleParser(fs.readFileSync(path.join(process.argv[2], file)), { skipTextToHtml: true, skipHtmlToText: true, skipImageLinks: true });
        shown[file] = {
            names: mail.headerLines.map(one => one.key),
            headers: Object.fromEntries(mail.headerLines.map(one => [one.key, one.line.replace(/\r?\n/g, '').replace(/^[^:]*:\s*/, '')])),
            subject: mail.subject || '',
            from: boxes(mail.from),
            to: boxes(mail.to),
            others: [...boxes(mail.cc), ...boxes(mail.bcc)],
            reply_to: boxes(mail.replyTo),
            text: mail.text || '',
            html: mail.html || '',
            files: mail.attachments.map(one => ({
                name: one.filename || '',
                type: one.contentType,
                id: one.contentId || '',
                inline: one.contentDisposition === 'inline',
                sha256: crypto.createHash('sha256').update(one.content).digest('hex'),
            })),
        };
    }
    console.log(JSON.stringify(shown));
})();
