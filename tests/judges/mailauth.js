// node mailauth.js FOLDER RECORDS: {file: [verdict per signature, from the top]} of every *.eml, judged by mailauth.
const fs = require('fs');
const path = require('path');
const { dkimVerify } = require('mailauth/lib/dkim/verify');

const [folder, given] = process.argv.slice(2);
const records = JSON.parse(given);
const resolver = async name => {
    if (!(name in records)) throw Object.assign(new Error('no such record'), { code: 'ENOTFOUND' });
    return [[records[name]]];
};

(async () => {
    const verdicts = {};
    for (const file of fs.readdirSync(folder).filter(name => name.endsWith('.eml'))) {
        const found = await dkimVerify(fs.readFileSync(path.join(folder, file)), { resolver });
        verdicts[file] = found.results.map(one => one.status.result === 'pass');
    }
    console.log(JSON.stringify(verdicts));
})();
