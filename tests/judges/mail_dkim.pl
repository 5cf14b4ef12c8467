# perl mail_dkim.pl FOLDER RECORDS: {file: [verdict per signature, from the top]} of every *.eml, judged by Mail::DKIM.
use strict;
use warnings;
use JSON::PP;
use Mail::DKIM::DNS;
use Mail::DKIM::Verifier;

my ($folder, $given) = @ARGV;
my $records = decode_json($given);

package Answer { sub new { bless {text => $_[1]}, $_[0] } sub type { 'TXT' } sub txtdata { $_[0]{text} } sub char_str_list { ($_[0]{text}) } }

{
    no warnings 'redefine';
    *Mail::DKIM::DNS::query = sub {
        my ($name) = @_;
        return exists $records->{$name} ? (Answer->new($records->{$name})) : ();
    };
    *Mail::DKIM::DNS::query_async = sub {
        my ($name, $type, %more) = @_;
        my @answer = Mail::DKIM::DNS::query($name, $type);
        my $on = $more{Callbacks}{Success} || sub { @_ };
        return sub { $on->(@answer) };
    };
}

my %verdicts;
opendir(my $dir, $folder) or die;
for my $file (sort grep { /\.eml$/ } readdir $dir) {
    open(my $in, '<:raw', "$folder/$file") or die;
    local $/;
    my $verifier = Mail::DKIM::Verifier->new;
    $verifier->PRINT(scalar <$in>);
    $verifier->CLOSE;
    $verdicts{$file} = [
        map {
            $_->algorithm =~ /^rsa-/ ? ($_->result eq 'pass' ? JSON::PP::true : JSON::PP::false) : undef
        } $verifier->signatures
    ];
}
print encode_json(\%verdicts);
