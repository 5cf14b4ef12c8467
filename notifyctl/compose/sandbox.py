"""Running one part of a template inside Jinja2's immutable sandbox, bounded, with errors that hold no values.

Undefined is strict, and null counts as undefined: an empty code in a message is worse than no message. Nothing random
is offered, so the same variables give the same text. A template cannot use another one: a published version is whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from notifyctl.errors import InputError

if TYPE_CHECKING:
    import jinja2

_UNDEFINED_NAME = re.compile(r"'([^']*)'(?: is undefined)?\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_OUTPUT = 5_000_000  # characters of one rendered part
_CHUNKS = 16  # pieces of the output that are made before its length is looked at
_MAX_REPEAT = 10_000  # how often `*` may repeat a text
_MAX_EXPONENT = 64


class _NotText(Exception):
    """The result is no text that can be sent: too long, or not encodable. The text says which."""


def compile_part(source: str, where: str, *, html: bool) -> jinja2.Template:
    """Compile one part; `where` names it in errors. Raises InputError(reason="template_syntax") with the line."""
    import jinja2
    from jinja2 import nodes

    env = environment(html)
    line, why = 0, ""
    try:
        tree = env.parse(source)
        for foreign in (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport):
            if (found := tree.find(foreign)) is not None:
                line, why = found.lineno, "a template cannot use another one"
        if not why:
            # a plain dict: Jinja2's own chain of two would be walked name by name for every message
            return env.template_class.from_code(env, env.compile(tree, where, where), dict(env.globals))
    except jinja2.TemplateSyntaxError as error:
        line, why = error.lineno, error.message or "syntax error"
    except RecursionError:
        line, why = 1, "nested too deeply"
    raise InputError(
        f"{where}, line {line}: {why}",
        reason="template_syntax",
        field="template",
        hint="mend the file and publish again",
    )


def run_part(compiled: jinja2.Template, source: str, variables: Mapping[str, object]) -> str:
    """Render one compiled part.

    Raises InputError: variable_missing (`field` is the variable's name), template_error for whatever else goes wrong.
    """
    where = compiled.filename or "template"
    try:
        return _bounded(compiled, variables)
    except _NotText as error:
        why = str(error)
    except Exception as error:  # whatever a template can do; the exception's own text may hold values
        from jinja2 import UndefinedError

        if isinstance(error, UndefinedError):
            raise _missing(error, where, source) from None
        why = f"rendering failed ({type(error).__name__})"
        where += _line(error, where)
    raise InputError(f"{where}: {why}", reason="template_error", field="template", hint="mend the template")


def _missing(error: jinja2.UndefinedError, where: str, source: str) -> InputError:
    found = _UNDEFINED_NAME.search(error.message or "")
    # `d[x]` is looked up by the *value* of x: only what the template itself spells out may be printed.
    name = found[1] if found and re.search(rf"\b{re.escape(found[1])}\b", source) else ""
    return InputError(
        f"{where}{_line(error, where)}: "
        + (f"the variable {name} is missing or null" if name else "a variable is missing or null"),
        reason="variable_missing",
        field=name,
        hint="give it with --var or in `vars`; what may be absent is written {{ x|default('') }} in the template",
    )


def _bounded(compiled: jinja2.Template, variables: Mapping[str, object]) -> str:
    # what Jinja2's own generate() does, without its step per chunk: a mail has dozens, a run has thousands of mails
    chunks = compiled.root_render_func(compiled.new_context(dict(variables)))
    parts: list[str] = []
    size = 0
    try:
        while size <= _MAX_OUTPUT and (some := list(islice(chunks, _CHUNKS))):
            size += sum(map(len, some))
            parts += some
    except Exception:
        compiled.environment.handle_exception()  # raises it again, its traceback naming the template's lines
    if size > _MAX_OUTPUT:
        raise _NotText(f"the result is longer than {_MAX_OUTPUT} characters")
    text = "".join(parts)
    if not text.isascii() and _SURROGATE.search(text):
        raise _NotText("the result holds half of a character (a lone surrogate)")
    return text


def _line(error: BaseException, filename: str) -> str:
    """`, line N` where Jinja2 knows it: it rewrites the traceback so that frames name the template's lines."""
    line, entry = 0, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == filename:
            line = entry.tb_lineno
        entry = entry.tb_next
    return f", line {line}" if line else ""


@cache
def environment(html: bool) -> jinja2.Environment:
    """Where parts are compiled; `html`: what is inserted is escaped."""
    import jinja2
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        """Null is undefined, data comes before methods, and a text cannot be repeated without bound."""

        intercepted_binops = frozenset({"*", "**"})

        def getattr(self, obj: Any, attribute: str) -> Any:
            # `order.items` means the items of an order, not the method of the dict that holds it.
            known = isinstance(obj, Mapping) and attribute in obj
            found = obj[attribute] if known else super().getattr(obj, attribute)
            return self.undefined(obj=obj, name=attribute) if found is None else found

        def getitem(self, obj: Any, argument: Any) -> Any:
            found = super().getitem(obj, argument)
            return self.undefined(obj=obj, name=argument) if found is None else found

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**" and not (isinstance(right, int | float) and abs(right) <= _MAX_EXPONENT):
                raise SecurityError("the exponent is too large")
            for text, times in ((left, right), (right, left)):
                if operator == "*" and not isinstance(text, int | float) and times > _MAX_REPEAT:
                    raise SecurityError("repeats a text too often")
            return super().call_binop(context, operator, left, right)

    def no_null(value: Any) -> Any:
        if value is None:  # out of a filter or a loop: those do not pass getattr
            raise jinja2.UndefinedError("a value is null")
        if callable(value) and not isinstance(value, jinja2.Undefined):  # a missing variable that a built-in shadows
            raise jinja2.UndefinedError("a function is not a text")
        return value

    env = Sandbox(undefined=jinja2.StrictUndefined, autoescape=html, finalize=no_null)
    for name in ("lipsum", "cycler", "joiner"):
        del env.globals[name]
    del env.filters["random"]
    return env
