"""Templates: read strictly, rendered in one locale, missing values refused, values never printed."""

from pathlib import Path

import pytest

from notifyctl.compose.templates import Renderer, check, read_folder
from notifyctl.errors import InputError
from notifyctl.model import Channel, Template


def template(**parts: str) -> Template:
    """Parts outside any locale folder."""
    return Template("order-paid", "3", {("", part): source for part, source in parts.items()})


def sms(source: str, **variables: object) -> str:
    return Renderer("en").render(template(sms=source), Channel.SMS, None, variables).sms


def refusal(source: str, **variables: object) -> InputError:
    with pytest.raises(InputError) as caught:
        sms(source, **variables)
    return caught.value


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_a_folder_becomes_templates_in_the_order_of_their_versions(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "welcome/10/sms.txt": "ten",
            "welcome/9/sms.txt": "\ufeffnine\r\nlines",
            "welcome/9/.swp": "",
            "welcome/9/sms.txt~": "old",
            "bill/1/subject.txt": "s",
            "bill/1/body.html": "h",
            "bill/1/de_AT/subject.txt": "b",
            "bill/1/de_AT/body.txt": "t",
            "README.md": "about this folder",
        },
    )
    assert read_folder(tmp_path) == [
        Template(
            "bill", "1", {("", "html"): "h", ("", "subject"): "s", ("de-AT", "text"): "t", ("de-AT", "subject"): "b"}
        ),
        Template("welcome", "9", {("", "sms"): "nine\nlines"}),
        Template("welcome", "10", {("", "sms"): "ten"}),
    ]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"a/1/body.htm": ""}, "body.htm"),
        ({"a/1/de/extra/x": ""}, "extra"),
        ({"a/1/not a locale/sms.txt": ""}, "not a locale"),
        ({"a/1 beta/sms.txt": ""}, "1 beta"),
        ({"a/1/sms.txt": b"\xff\xfe"}, "line 1"),
        ({"a/1/sms.txt": b"ok\nGr\xfc\xdfe"}, "line 2"),
        ({"a/1/sms.txt": "x" * 1_000_001}, "larger"),
        ({"a/1/.keep": ""}, "no template file"),
    ],
)
def test_what_is_misplaced_or_undecodable_is_named(tmp_path: Path, files: dict[str, str | bytes], named: str) -> None:
    with pytest.raises(InputError) as caught:
        read_folder(write(tmp_path, files))
    assert caught.value.reason == "template_unreadable"
    assert named in caught.value.message


def test_a_missing_folder_and_a_folder_for_a_file_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_folder(tmp_path / "none")
    (tmp_path / "a/1/sms.txt").mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        read_folder(tmp_path)
    assert caught.value.reason == "template_unreadable"


def test_a_syntax_error_names_file_and_line() -> None:
    broken = Template("order-paid", "3", {("", "subject"): "s", ("", "text"): "t", ("de", "html"): "a\n{% if %}"})
    with pytest.raises(InputError) as caught:
        check(broken)
    assert caught.value.reason == "template_syntax"
    assert "order-paid@3, de/body.html, line 2" in caught.value.message


@pytest.mark.parametrize("source", ["{{ x|nofilter }}", "{% include 'x' %}", "{% extends 'x' %}", "{{ " + "(" * 5000])
def test_what_could_never_run_is_refused_when_published(source: str) -> None:
    with pytest.raises(InputError) as caught:
        check(template(sms=source))
    assert caught.value.reason == "template_syntax"


@pytest.mark.parametrize("parts", [{"subject": "s"}, {"text": "t"}, {"html": "h", "sms": "x"}])
def test_half_a_mail_is_refused_when_published(parts: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        check(template(**parts))
    assert caught.value.reason == "template_part_missing"


def test_bad_names_are_refused_and_whole_templates_pass() -> None:
    check(template(sms="x"))
    check(template(subject="s", html="h"))
    for name, version in (("", "1"), ("a/b", "1"), ("../x", "1"), ("a", ""), ("a", "x" * 65), ("a", "1\n")):
        with pytest.raises(InputError) as caught:
            check(Template(name, version, {("", "sms"): "x"}))
        assert caught.value.reason == "template_name"


def test_only_html_is_escaped() -> None:
    made = Renderer("en").render(
        template(subject="{{ x }}\n", text="{{ x }}", html="<b>{{ x }}</b>"), Channel.EMAIL, None, {"x": "<&>"}
    )
    assert (made.subject, made.text, made.html, made.sms) == ("<&>", "<&>", "<b>&lt;&amp;&gt;</b>", "")


def test_all_parts_come_from_the_first_locale_that_has_what_the_channel_needs() -> None:
    made = Template(
        "t",
        "1",
        {
            ("", "subject"): "none", ("", "text"): "none",
            ("en", "subject"): "en", ("en", "text"): "en", ("en", "sms"): "en",
            ("de", "subject"): "de", ("de", "text"): "de", ("de", "html"): "de",
            ("de-AT", "sms"): "de-AT", ("de-AT", "subject"): "de-AT",
        },
    )  # fmt: skip
    render = Renderer("en").render
    mail = render(made, Channel.EMAIL, "de-AT", {})
    assert (mail.locale, mail.subject, mail.text, mail.html) == ("de", "de", "de", "de")
    assert render(made, Channel.SMS, "de_at", {}).locale == "de-AT"
    assert render(made, Channel.SMS, "de", {}).locale == "en"
    assert render(made, Channel.EMAIL, "fr-CA", {}).locale == "en"
    assert render(made, Channel.EMAIL, None, {}).locale == "en"
    assert Renderer("fr").render(made, Channel.EMAIL, "it", {}).locale == ""


def test_a_channel_without_its_parts_is_refused() -> None:
    for channel, parts in ((Channel.SMS, {"subject": "s", "text": "t"}), (Channel.EMAIL, {"sms": "x"})):
        with pytest.raises(InputError) as caught:
            Renderer("en").render(template(**parts), channel, "de", {})
        assert caught.value.reason == "template_part_missing"


@pytest.mark.parametrize(
    ("source", "variables", "name"),
    [
        ("a\n{{ code }}", {}, "code"),
        ("a\n{{ code }}", {"code": None}, "code"),
        ("a\n{{ order.code }}", {"order": {}}, "code"),
        ("a\n{{ order['code'] }}", {"order": {"code": None}}, "code"),
        ("a\n{{ code|upper }}", {}, "code"),
        ("a\n{% if code %}x{% endif %}", {"code": None}, "code"),
        ("a\n{{ order[key] }}", {"order": {}, "key": "secret"}, ""),
        ("a\n{% for x in xs %}{{ x }}{% endfor %}", {"xs": ["1", None]}, ""),
        ("a\n{{ range }}", {}, ""),
    ],
)
def test_a_missing_or_null_variable_refuses_by_name(source: str, variables: dict[str, object], name: str) -> None:
    error = refusal(source, **variables)
    assert (error.reason, error.field) == ("variable_missing", name)
    assert "order-paid@3, sms.txt, line 2" in error.message
    assert "secret" not in f"{error!r}{error.hint}"


@pytest.mark.parametrize(
    ("parts", "variables", "names"),
    [
        ({"subject": "{{ a }}", "text": "{{ b }} {{ a }}", "html": "<p>{{ c }}</p>"}, {}, "a, b, c"),
        ({"subject": "{{ a }}", "text": "{{ b }} {{ c }}"}, {"a": None, "b": 1, "c": None}, "a, c"),
        ({"subject": "{{ order.total }}", "text": "{{ order.day|upper }}"}, {}, "order"),
        ({"subject": "{{ order.total }}", "text": "{{ order.day|upper }}"}, {"order": {"x": 1}}, "total, day"),
        ({"subject": "{{ a + 1 }}{{ b * 2 }}", "text": "{{ c(1)[2].x }}{{ d < 3 }}{{ -e }}"}, {}, "a, b, c, d, e"),
        ({"subject": "{{ a|int + b|length }}", "text": "{{ c|default('') }}{{ d is defined }}"}, {}, "a, b"),
        ({"subject": "x", "text": "{% for i in rows %}{{ i.n }} {{ unit }}{% endfor %}{{ z }}"}, {}, "rows, unit, z"),
        ({"subject": "x", "text": "{% if vip %}{{ discount }}{% else %}{{ price }}{% endif %}"}, {}, "vip, price"),
        ({"subject": "{{ d[x] }}", "text": "{{ a }}"}, {"d": {}, "x": "secret"}, "a"),
        ({"subject": "{{ a }}", "text": "{{ d[x] }}{{ b }}"}, {"d": {}, "x": "secret"}, "a, b"),
    ],
)
def test_all_missing_variables_are_named(parts: dict[str, str], variables: dict[str, object], names: str) -> None:
    with pytest.raises(InputError) as caught:
        Renderer("en").render(template(**parts), Channel.EMAIL, None, variables)
    assert (caught.value.reason, caught.value.field) == ("variable_missing", names)
    assert "secret" not in caught.value.message
    assert all(name in caught.value.message for name in names.split(", "))


def test_what_may_be_absent_can_be_asked_for() -> None:
    assert sms("{{ x|default('d') }}{{ 'y' if x is defined else 'n' }}", x=None) == "dn"


def test_a_field_wins_over_the_method_of_the_same_name() -> None:
    assert (
        sms("{% for i in order.items %}{{ i }},{% endfor %}{{ order.keys }}", order={"items": [1, 2], "keys": 3})
        == "1,2,3"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ secret.append(1) }}",
        "{{ secret + 1 }}",
        "{{ 'a' * 100000 }}",
        "{{ [1] * 100000 }}",
        "{{ 9 ** 999 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ secret }}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_or_runs_away_is_refused_without_a_value_in_the_error(source: str) -> None:
    error = refusal(source, secret=["s3cr3t"])
    assert error.reason == "template_error"
    assert "sms.txt" in error.message
    assert "s3cr3t" not in f"{error!r}{error.hint}"
    assert error.__context__ is None or error.__suppress_context__


def test_a_lone_surrogate_in_a_variable_is_refused() -> None:
    assert refusal("{{ x }}", x="\ud83d").reason == "template_error"


def test_a_version_is_compiled_once_and_other_content_under_its_name_is_noticed() -> None:
    renderer = Renderer("en")
    first, again, other = template(sms="a {{ x }}"), template(sms="a {{ x }}"), template(sms="b {{ x }}")
    assert [renderer.render(made, Channel.SMS, None, {"x": 1}).sms for made in (first, again, other, first)] == [
        "a 1",
        "a 1",
        "b 1",
        "a 1",
    ]
