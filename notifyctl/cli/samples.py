"""What `init` writes: a commented configuration and one template with a second locale. Tests load and publish them."""

from __future__ import annotations

CONFIG = """\
# notifyctl's configuration. Durations carry a unit ("15s", "16m", "72h", "3d"); relative paths start at this file.
# A secret x is given as x_env, x_file or x_command. An unknown key is an error that names the nearest known one.

instance = {instance}          # this installation's name: a ledger made under another name is refused
# region = "eu"                  # this host's home region, where several share a ledger

[ledger]
url = "sqlite:///notifyctl.db"   # or "postgresql+psycopg://user@host/database"; $NOTIFYCTL_LEDGER_URL overrides it
# patience = "10s"               # how long a locked or unreachable database is waited for

[templates]
path = "templates"               # NAME/VERSION/[LOCALE/]subject.txt body.txt body.html sms.txt
default_locale = "en"

[log]
file = "notifyctl.log"

# [phone]
# default_region = "GB"          # how numbers without a country code are read

# Ways out. The first two write into a folder, so that nothing leaves this machine until you say so.

[transports.outbox]
kind = "file"
path = "outbox"                  # mails go to outbox/mail (a Maildir)
from = "Example <no-reply@example.com>"

[transports.texts]
kind = "file"
path = "outbox"                  # one line per SMS in outbox/sms.jsonl
from = "+15005550006"

# [transports.relay]
# kind = "smtp"
# host = "smtp.example.com"
# port = 587
# tls = "starttls"               # or "implicit", or "none" on this machine itself
# username = "shop"
# password_file = "relay.password"
# from = "Example <no-reply@example.com>"
# deadline = "60s"               # for the whole exchange

# Classes of traffic, each with its own budget. A delivery that names no lane goes by its channel's name.

[lanes.email]
channel = "email"
transport = "outbox"             # "relay", once you have filled it in
batch = 100
concurrency = 10
# rate = "50/s"                  # also ["10/s", "10000/d"]
max_attempts = 8
give_up_after = "3d"
objective = {{ oldest_age = "5m" }}

[lanes.sms]
channel = "sms"
transport = "texts"
objective = {{ oldest_age = "1m" }}

# [topics.weekly-digest]
# consent = "required"           # or "opt_out", "none"
# lane = "email"
"""

TEMPLATES = {
    "welcome/1/subject.txt": "Welcome, {{ name }}\n",
    "welcome/1/body.txt": "Hello {{ name }},\n\nyour account is ready.\n",
    "welcome/1/body.html": "<p>Hello {{ name }},</p>\n<p>your account is ready.</p>\n",
    "welcome/1/sms.txt": "Hello {{ name }}, your account is ready.\n",
    "welcome/1/de/subject.txt": "Willkommen, {{ name }}\n",
    "welcome/1/de/body.txt": "Hallo {{ name }},\n\nIhr Konto ist eingerichtet.\n",
    "welcome/1/de/body.html": "<p>Hallo {{ name }},</p>\n<p>Ihr Konto ist eingerichtet.</p>\n",
    "welcome/1/de/sms.txt": "Hallo {{ name }}, Ihr Konto ist eingerichtet.\n",
}
