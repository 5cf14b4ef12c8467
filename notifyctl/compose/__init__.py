"""From an intent to the exact bytes or text that will be sent: destinations, templates, mail, SMS.

Nothing here opens a socket, a database or a clock: the same input always gives the same bytes, so that a replay can be
compared with what was sent before.
"""
