"""Tests mirror the package; `smtp_server` is the other end that all of them share."""
