"""The libraries that notifyctl is measured against, each used as its own manual says. Started by the benchmarks.

    PYTHON peer.py DATABASE PORT migrate
    PYTHON peer.py DATABASE PORT queue-post-office ROWS.csv     send_many, 1,000 mails a call
    PYTHON peer.py DATABASE PORT queue-django-mailer ROWS.csv   its backend's send_messages, 1,000 mails a call
    PYTHON peer.py DATABASE PORT send                           post_office's send_queued_mail with its defaults

PYTHON is an interpreter that has both (see `arena.peers`); DATABASE an SQLite file or a postgresql:// URL.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PAGE = 1000


def configure(database: str, port: int) -> None:
    """Django with nothing but the two libraries in it."""
    import django
    from django.conf import settings

    parts = urlsplit(database)
    if parts.scheme:
        connection: dict[str, Any] = {
            "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username,
            "HOST": parts.hostname, "PORT": parts.port,
        }  # fmt: skip
    else:
        connection = {"ENGINE": "django.db.backends.sqlite3", "NAME": database}
    settings.configure(
        DATABASES={"default": connection}, INSTALLED_APPS=["django.contrib.contenttypes", "post_office", "mailer"],
        EMAIL_BACKEND="post_office.EmailBackend", EMAIL_HOST="127.0.0.1", EMAIL_PORT=port, USE_TZ=True, SECRET_KEY="x",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
    )  # fmt: skip
    django.setup()


def mails(file: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of `rows.csv` as finished mails, page by page."""
    folder = Path(file).parent / "templates" / "order" / "1"
    parts = {name: (folder / name).read_text() for name in ("subject.txt", "body.txt", "body.html")}
    with open(file, newline="") as source:
        rows = csv.DictReader(source)
        while page := list(islice(rows, PAGE)):
            yield [_mail(parts, row) for row in page]


def _mail(parts: dict[str, str], row: dict[str, str]) -> dict[str, Any]:
    filled = {}
    for part, text in parts.items():
        for name, value in row.items():
            if name.startswith("vars."):
                text = text.replace("{{ " + name[5:] + " }}", value)
        filled[part] = text
    return {
        "sender": "Shop <no-reply@shop.example>", "recipients": [row["to.email"]], "subject": filled["subject.txt"],
        "message": filled["body.txt"], "html_message": filled["body.html"],
    }  # fmt: skip


def queue_post_office(file: str) -> None:
    """Its bulk way in."""
    from post_office import mail

    for page in mails(file):
        mail.send_many(page)


def queue_django_mailer(file: str) -> None:
    """Its bulk way in."""
    from django.core.mail import EmailMultiAlternatives
    from mailer.backend import DbBackend

    backend = DbBackend()
    for page in mails(file):
        messages = []
        for one in page:
            message = EmailMultiAlternatives(one["subject"], one["message"], one["sender"], one["recipients"])
            message.attach_alternative(one["html_message"], "text/html")
            messages.append(message)
        backend.send_messages(messages)


def main(database: str, port: str, action: str, *arguments: str) -> None:
    """Do one thing."""
    configure(database, int(port))
    from django.core.management import call_command

    if action == "migrate":
        call_command("migrate", verbosity=0)
    elif action == "send":
        call_command("send_queued_mail", lockfile=str(Path(arguments[0]) / "lock"))
    elif action == "sent":
        from post_office.models import STATUS, Email

        print(Email.objects.filter(status=STATUS.sent).count())
    else:
        {"queue-post-office": queue_post_office, "queue-django-mailer": queue_django_mailer}[action](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
