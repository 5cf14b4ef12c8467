"""Tests of the ways out, against real sockets and real folders."""
