"""Which variables a template lacks: all of them, so that mending one shows no second surprise.

The renderer stops at the first missing value; only then is this asked. The parts run once more with an undefined value
that notes its name and goes on: empty as a text, false as a condition, one nameless item as a list. What a condition
hides stays unasked: nobody can know which branch the missing value would have chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from itertools import islice
from threading import local
from typing import TYPE_CHECKING, Any

from notifyctl.compose.sandbox import environment

if TYPE_CHECKING:
    import jinja2

_MOST_CHUNKS = 100_000  # of one part's output; a template that is only asked must end too

_run = local()  # `names`: what this thread's run has found so far


def names(sources: Iterable[tuple[str, bool]], variables: Mapping[str, object]) -> list[str]:
    """The variables that these parts (source, whether it is HTML) lack, in order of their first use.

    Only what a part itself spells out is named: `d[x]` is looked up by a value. May be empty although one is missing.
    """
    found: dict[str, None] = {}
    for source, html in sources:
        _run.names = []
        # Whatever fails here has nothing to add: the renderer itself says what is wrong.
        with suppress(Exception):
            for _ in islice(_compiled(source, html).generate(variables), _MOST_CHUNKS):
                pass
        found.update(dict.fromkeys(name for name in _run.names if _spelled(name, source)))
    return list(found)


def _spelled(name: str, source: str) -> bool:
    return bool(re.search(rf"\b{re.escape(name)}\b", source))


@lru_cache(maxsize=64)
def _compiled(source: str, html: bool) -> jinja2.Template:
    return _asking(html).from_string(source)


@cache
def _asking(html: bool) -> jinja2.Environment:
    import jinja2

    class Noting(jinja2.Undefined):
        """Notes its name wherever the strict one would refuse; what comes out of it is nameless."""

        __slots__ = ()

        def _note(self, *_: Any, **__: Any) -> Any:
            if isinstance(self._undefined_name, str):
                _run.names.append(self._undefined_name)
            return Noting()

        def _text(self) -> str:
            self._note()
            return ""

        def _no(self, *_: Any) -> bool:
            self._note()
            return False

        def _zero(self) -> int:
            self._note()
            return 0

        def _float(self) -> float:
            self._note()
            return 0.0

        def _once(self) -> Iterator[Any]:
            yield self._note()

        def __getattr__(self, name: str) -> Any:
            if name[:2] == "__" and name[-2:] == "__":  # Python's own probing, as in Jinja2's class
                raise AttributeError(name)
            return self._note()

        __call__ = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _note
        __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _note
        __pos__ = __neg__ = _note
        __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = __contains__ = _no  # type: ignore[assignment]
        __str__, __iter__, __float__ = _text, _once, _float  # type: ignore[assignment]
        __len__ = __int__ = __hash__ = _zero  # type: ignore[assignment]

    def nameless(value: Any) -> Any:
        return "" if value is None else value

    return environment(html).overlay(undefined=Noting, finalize=nameless)
