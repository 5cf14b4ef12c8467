# perl email_mime.pl FOLDER: {file: what a mail program would show} of every *.eml, judged by Email::MIME.
use strict;
use warnings;
use Digest::SHA qw(sha256_hex);
use Email::Address::XS qw(parse_email_addresses);
use Email::MIME;
use Encode qw(decode);
use JSON::PP;

# Split into addresses first, encoded-words decoded after: the order in which a name stays one name.
sub boxes {
    my @found = map { parse_email_addresses($_) } @_;
    return [
        map {
            my $name = $_->phrase // '';
            my $address = $_->address // '';
            utf8::decode($address);
            [$name =~ /=\?/ ? decode('MIME-Header', $name) : $name, $address]
        } @found
    ];
}

my ($folder) = @ARGV;
my %shown;
opendir(my $dir, $folder) or die;
for my $file (sort grep { /\.eml$/ } readdir $dir) {
    open(my $in, '<:raw', "$folder/$file") or die;
    local $/;
    my $mail = Email::MIME->new(scalar <$in>);
    my %one = (names => [], headers => {}, text => '', html => '', files => []);
    my @pairs = $mail->header_raw_pairs;
    while (my ($name, $value) = splice @pairs, 0, 2) {
        push @{ $one{names} }, lc $name;
        $one{headers}{ lc $name } = $value;
    }
    $one{subject} = $mail->header_str('Subject') // '';
    $one{from} = boxes($mail->header_raw('From'));
    $one{to} = boxes($mail->header_raw('To'));
    $one{others} = boxes($mail->header_raw('Cc'), $mail->header_raw('Bcc'));
    $one{reply_to} = boxes($mail->header_raw('Reply-To'));
    $mail->walk_parts(sub {
        my ($part) = @_;
        return if $part->subparts;
        my ($type) = ($part->content_type // 'text/plain') =~ m{^([^;\s]+)};
        my $disposition = $part->header_raw('Content-Disposition') // '';
        if ($disposition) {
            my $id = $part->header_raw('Content-ID') // '';
            push @{ $one{files} }, {
                name => $part->filename // '',
                type => $type,
                id => $id,
                inline => $disposition =~ /^inline/ ? JSON::PP::true : JSON::PP::false,
                sha256 => sha256_hex($part->body),
            };
        } elsif ($type eq 'text/html') {
            $one{html} = $part->body_str;
        } else {
            $one{text} = $part->body_str;
        }
    });
    $shown{$file} = \%one;
}
print encode_json(\%shown);
