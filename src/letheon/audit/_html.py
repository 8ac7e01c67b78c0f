"""A report as one page that opens without a network and prints well."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from letheon.audit._result import LEVELS

if TYPE_CHECKING:
    from letheon.audit._result import AuditReport, LevelResult

__all__ = ["report_page", "write_page"]

_WORDS = {"pass": "Pass", "fail": "Fail", "skipped": "Skipped"}
_SIGNS = {"pass": "✓", "fail": "✗", "skipped": "–"}

# The policy makes the browser refuse whatever is not in the file.
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1c2530; --soft: #5a6673; --line: #d5dbe1;
  --paper: #ffffff; --good: #1a7a3c; --bad: #b3261e; --open: #8a6100; --band: #f4f6f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecf0; --soft: #a5b0bb; --line: #3a444e;
  --paper: #14181c; --good: #58c883; --bad: #ff8a80; --open: #e7b95a; --band: #1d2329; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 2rem 1.5rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { margin: .3rem 0; }
.soft { color: var(--soft); }
.verdict { font-size: 1.15rem; padding: .7rem 1rem; margin: 1rem 0; border-left: .4rem solid;
  background: var(--band); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .5rem .7rem;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; font-size: .85rem; }
td.word { white-space: nowrap; font-weight: 600; }
.pass { color: var(--good); } .fail { color: var(--bad); } .skipped { color: var(--open); }
.verdict.pass, .verdict.fail, .verdict.skipped { border-color: currentColor; }
.verdict span { color: var(--ink); }
code { font: .85em/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { font: .8rem/1.4 ui-monospace, monospace; background: var(--band); padding: .6rem .8rem;
  overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: .4rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
details { margin: .2rem 0; } summary { cursor: pointer; color: var(--soft); }
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --line: #999; --band: #f2f2f2;
  --good: #0b5c28; --bad: #8f1410; --open: #6b4a00; }
  body { max-width: none; padding: 0; font-size: 11pt; } tr, h2, h3 { break-inside: avoid; }
  h2 { break-after: avoid; } details::details-content { content-visibility: visible; } }
</style>
</head>
<body>
<header>
<h1>$title</h1>
<p class="soft">Made $made, with the files of a bundle and the public key <code>$key</code>.</p>
$verdict
</header>
<main>
<section aria-labelledby="results"><h2 id="results">Results</h2>
<table>
<thead><tr><th scope="col">Level</th><th scope="col">Shows</th><th scope="col">Model</th>
<th scope="col">Verdict</th><th scope="col">Reason</th></tr></thead>
<tbody>
$rows
</tbody>
</table>
</section>
$subjects
<section aria-labelledby="limits"><h2 id="limits">What these levels do not show</h2>
<dl>
$limits
</dl>
</section>
</main>
</body>
</html>
""")


def write_page(path: str | Path, report: "AuditReport") -> Path:
    """Write the page of a report; missing folders are made."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(report_page(report), encoding="utf-8")
    return file


def report_page(report: "AuditReport") -> str:
    """Return the page. Every text is escaped: a bundle may hold anything."""
    name = report.ledger or "a ledger"
    return _PAGE.substitute(
        title=escape(f"Audit of {name}"),
        made=escape(report.audited_at),
        key=escape(report.key),
        verdict=_verdict(report),
        rows="\n".join(_row(result) for result in report),
        subjects="\n".join(_subjects(report)),
        limits="\n".join(_limits(report)),
    )


def _verdict(report: "AuditReport") -> str:
    failed, skipped, total = len(report.failures), len(report.skipped), len(report.results)
    rest = f" {skipped} skipped." if skipped else ""
    scope = f" It covers: {report.scope}." if report.scope else ""
    if report.verdict == "failed":
        return _banner("fail", "Failed.", f"{failed} of {total} checks failed.{rest}{scope}")
    if report.verdict == "passed":
        text = f"{total - skipped} checks passed, none failed.{rest}{scope}"
        return _banner("pass", "Passed.", text)
    text = f"{total - skipped} of {total} checks passed, none failed.{rest} This is no pass.{scope}"
    return _banner("skipped", "Incomplete.", text)


def _banner(kind: str, word: str, text: str) -> str:
    return f'<p class="verdict {kind}"><strong>{word}</strong> <span>{escape(text)}</span></p>'


def _row(result: "LevelResult") -> str:
    word = f"{_SIGNS[result.verdict]} {_WORDS[result.verdict]}"
    return (
        f"<tr><td>{escape(result.level)}</td><td>{escape(result.name)}</td>"
        f"<td>{escape(result.model or 'all')}</td>"
        f'<td class="word {result.verdict}">{word}</td>'
        f"<td>{escape(result.reason)}{_details(result.details)}</td></tr>"
    )


def _details(details: Mapping[str, Any]) -> str:
    if not details:
        return ""
    text = json.dumps(dict(details), indent=1, sort_keys=True, default=str, ensure_ascii=False)
    return f"<details><summary>Numbers</summary><pre>{escape(text)}</pre></details>"


def _subjects(report: "AuditReport") -> Iterator[str]:
    if not report.subjects:
        return
    yield '<section aria-labelledby="claims"><h2 id="claims">What is claimed</h2>'
    for subject in report.subjects:
        yield f"<h3>{escape(str(subject['model']))}</h3>\n<dl>"
        for label, value in _claims(subject):
            yield f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>"
        yield "</dl>"
    yield "</section>"


def _claims(subject: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    guarantee = subject["guarantee"]
    yield "Newest certificate", f"{subject['sequence']} of {subject['certifiedAt']}"
    yield "Certificate id", str(subject["certificate"])
    yield "SHA-256 of the model's file", str(subject["subject"])
    text = "in the bundle" if subject["definitionInBundle"] else "not in the bundle"
    yield "Method", f"{subject['method']}, replay {subject['replay']}; its definition is {text}"
    bound = ""
    if "epsilon" in guarantee:
        bound = f", epsilon {guarantee['epsilon']}, delta {guarantee['delta']}"
    yield (
        "Guarantee",
        (
            f"{guarantee['kind']}{bound}; requests {guarantee['requests']}, "
            f"releases {guarantee['releases']}"
        ),
    )
    yield "Rows", f"{subject['rows']} erased by it, {subject['liveAfter']} left"
    yield "Not claimed", ", ".join(map(str, subject["notClaimed"]))


def _limits(report: "AuditReport") -> Iterator[str]:
    for level in dict.fromkeys(result.level for result in report):
        name, blind = LEVELS[level]
        yield f"<dt>{escape(level)} {escape(name)}</dt><dd>{escape(blind)}</dd>"
