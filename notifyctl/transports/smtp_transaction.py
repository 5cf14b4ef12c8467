"""One message on an open session, command by command, so that it is known how far it came.

smtplib's own sendmail() hides the phase: it raises the same exception before and after the final dot, and does not
pipeline.
"""

from __future__ import annotations

from notifyctl.failpoints import reach
from notifyctl.model import Outcome, OutcomeKind, Request
from notifyctl.transports.base import Phase, Steps, Trouble
from notifyctl.transports.smtp_codes import DATA, DOT, MAIL, RCPT, classify, codes
from notifyctl.transports.smtp_session import EarlyReply, Session

END = b".\r\n"  # the body always ends with CRLF, so this completes CRLF.CRLF (RFC 5321 4.1.1.4)
_RSET = "reset"
_POINTS = {_RSET: "smtp.rset", MAIL: "smtp.mail", RCPT: "smtp.rcpt", DATA: "smtp.data"}  # their replies were read


class Stale(Exception):
    """A kept session was found dead before it had taken anything of the message."""


def transact(session: Session, request: Request, *, kept: bool) -> Steps[Outcome]:
    """Submit one message on an open session. Raises Trouble, or Stale for a kept session that was already dead."""
    _, _, message_id, form, *_ = request.envelope
    unfit = _unfit(session, form, len(request.body) - len(END))
    if unfit is not None:
        return unfit
    session.messages += 1
    reach("smtp.opened")
    refused = yield from _envelope(session, _commands(session, request), kept=kept)
    if refused is not None:
        return refused
    if session.unread:  # an answer nobody asked for would later pass for the answer to the message
        raise Trouble("protocol_error")
    early = False
    try:
        yield from session.writing(request.body, last=len(request.body) - len(END))
    except EarlyReply:
        early = session.broken = True
    reach("smtp.written")
    code, text = yield from session.reading()
    reach("smtp.replied")
    session.broken |= code == 421
    if 200 <= code < 300 and not early:
        return Outcome(OutcomeKind.ACCEPTED, remote_ids=(message_id,), code=codes(code, text))
    outcome = classify(DOT, code, text)
    if outcome is None:
        raise Trouble("protocol_error" if early else "unreadable_reply", code=codes(code, text))
    return outcome


def _unfit(session: Session, form: str, size: int) -> Outcome | None:
    """Why the server can never take this message, as far as it has advertised; nothing is written then."""
    limit = session.size_limit()
    if limit and size > limit:
        return Outcome(OutcomeKind.PERMANENT_FAILURE, "too_large")
    if form == "utf8" and not session.has_extn("smtputf8"):
        return Outcome(OutcomeKind.PERMANENT_FAILURE, "smtputf8_unsupported")
    if form == "8bit" and not session.has_extn("8bitmime"):
        return Outcome(OutcomeKind.PERMANENT_FAILURE, "eight_bit_unsupported")
    return None


def _commands(session: Session, request: Request) -> list[tuple[str, bytes]]:
    """The commands before the body, in order; RSET first where the last transaction was left unfinished."""
    sender, recipient, _, form, *envelope_id = request.envelope
    mail = f"MAIL FROM:<{sender}>"
    if session.has_extn("size"):
        mail += f" SIZE={len(request.body) - len(END)}"
    mail += {"utf8": " BODY=8BITMIME SMTPUTF8", "8bit": " BODY=8BITMIME"}.get(form, "")
    rcpt = f"RCPT TO:<{recipient}>"
    if envelope_id and session.has_extn("dsn"):  # RFC 3461; of our mail its header is enough, the body is nobody's
        mail += f" RET=HDRS ENVID={envelope_id[0]}"
        rcpt += " NOTIFY=FAILURE,DELAY"
    commands = [(MAIL, f"{mail}\r\n".encode()), (RCPT, f"{rcpt}\r\n".encode()), (DATA, b"DATA\r\n")]
    return [(_RSET, b"RSET\r\n"), *commands] if session.unclean else commands


def _envelope(session: Session, commands: list[tuple[str, bytes]], *, kept: bool) -> Steps[Outcome | None]:
    """Write the commands and read their replies; the refusal that decides, or None: the body may follow.

    With PIPELINING they go out in one write. Where DATA is then taken although the recipient was refused, the empty
    message is ended with a lone dot (RFC 2920 3.1); the refusal stands whatever is answered to it.
    """
    pipelined = session.has_extn("pipelining")
    refused: Outcome | None = None
    refused_at, open_body = "", False
    answered = False  # the server has said something about MAIL
    try:
        if pipelined:
            yield from _write(session, b"".join(command for _, command in commands))
        for step, command in commands:
            if not pipelined:
                yield from _write(session, command)
            code, text = yield from session.reading()
            reach(_POINTS[step])
            if code == 421 and kept and not answered:
                raise Stale  # as good as gone
            answered = step != _RSET
            open_body = step == DATA and code == 354
            if open_body or (step != DATA and 200 <= code < 300):
                continue
            if step == _RSET:
                raise Stale if kept else Trouble("protocol_error")
            if refused is None:
                refused, refused_at = classify(step, code, text), step
                if refused is None:
                    raise Trouble("protocol_error", code=codes(code, text))  # noqa: TRY301 - the loop's own finding
            if code == 421:
                session.broken = True
                return refused
            if not pipelined:
                break
    except Trouble as trouble:
        if refused is not None:  # the refusal was read; the session is lost, which changes nothing
            session.broken = True
            return refused
        if kept and not answered and trouble.reason == "connection_lost":
            raise Stale from None
        raise
    session.unclean = refused is not None
    if refused is not None and open_body:
        yield from _end_empty_body(session, refused_at)
    return refused


def _end_empty_body(session: Session, refused_at: str) -> Steps[None]:
    if refused_at != RCPT:  # a server that refuses the sender and takes DATA might deliver the empty message
        session.broken = True
        return
    try:
        yield from session.writing(END)
        yield from session.reading()
    except Trouble:
        session.broken = True


def _write(session: Session, data: bytes) -> Steps[None]:
    session.exchange.check()  # before the phase moves: what was never tried is no failure of the message
    session.exchange.phase = Phase.WRITING
    yield from session.writing(data)
