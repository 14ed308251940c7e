"""The README.md of a classifier: what it is, what it was trained on, what it is worth, how it was made.

Says what was recorded and nothing else. Text that people gave is escaped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from citeweave.encoders.saved.model_card import escape
from citeweave.intents.options import ClassifierOptions

if TYPE_CHECKING:
    from citeweave.intents.classifier import ClassifierConfig

_HEAD = """# Citation-intent classifier

Tells why a sentence cites a paper: {labels}. It is a change of the encoder `{base}` (revision {revision}) and a head, and
works with that encoder only.

    from citeweave.intents.classifier import Citance, IntentClassifier
    IntentClassifier.open("this/folder").predict([Citance("We follow Och (2003).", section="Methods")])
"""


def card_text(config: ClassifierConfig, report: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    labels = ", ".join(config.labels[config.task])
    parts = [_HEAD.format(labels=labels, base=config.base, revision=config.base_revision)]
    about = report["about"]
    parts += ["## Data\n", _data(report, str(about["data"]))]
    parts += ["## Figures on the dev sentences\n", _figures(report)]
    parts += ["## How it was made\n", _making(config, report, str(about["command"]))]
    parts += [
        "## Limits\n",
        "The labels are those of its training sentences: English, mostly biomedicine and computer science where these are "
        "SciCite's. Probabilities are calibrated on the dev sentences, and may not be on other fields or languages.\n",
    ]
    return "\n".join(parts)


def _data(report: Mapping[str, Any], source: str) -> str:
    lines = [escape(source) + "\n"] if source else []
    lines += ["| task | sentences | of each label |", "|---|---|---|"]
    for task, counts in report["data"].items():
        each = ", ".join(f"{escape(name)} {number:,}" for name, number in counts["labels"].items())
        lines.append(f"| {escape(task)} | {counts['kept']:,} | {each} |")
    dev = report["dev"]
    each = ", ".join(f"{escape(name)} {found['sentences']:,}" for name, found in dev["labels"].items())
    lines.append(f"| dev: not trained on | {dev['sentences']:,} | {each} |")
    if report["unlabelled"]:
        lines.append(f"| unlabelled, labels by teachers | {report['unlabelled']:,} | |")
    return "\n".join(lines) + "\n"


def _figures(report: Mapping[str, Any]) -> str:
    lines = ["| | macro-F1 | accuracy |", "|---|---|---|"]
    for key, name in (("dev", "with sections"), ("dev_without_sections", "sections hidden")):
        lines.append(f"| {name} | {report[key]['macro_f1']} | {report[key]['accuracy']} |")
    lines += ["", "| label | precision | recall | F1 |", "|---|---|---|---|"]
    for name, found in report["dev"]["labels"].items():
        lines.append(f"| {escape(name)} | {found['precision']} | {found['recall']} | {found['f1']} |")
    calibration = report["calibration"]
    lines += [
        "",
        f"Expected calibration error {calibration['error_before']} before and {calibration['error_after']} after temperature "
        f"scaling (T = {calibration['temperature']}; the second figure with a temperature fitted on the other half).\n",
    ]
    return "\n".join(lines)


def _making(config: ClassifierConfig, report: Mapping[str, Any], command: str) -> str:
    usual = dataclasses.asdict(ClassifierOptions())
    own = [f"{name} {value}" for name, value in report["options"].items() if value != usual[name]]
    options = "".join(f"\n- {escape(option)}" for option in own) or " none"
    lines = [
        f"Low-rank changes of rank {config.rank}" if config.parts == "lora" else f"Trained parts: {config.parts}",
        f", pooling {config.pooling}, saved as {config.precision}, {report['bytes']:,} bytes.\n",
    ]
    text = "".join(lines) + f"\nOptions that are not the usual ones:{options}\n"
    if report.get("teachers"):
        text += (
            f"\nIt imitates {report['teachers']} fully trained networks, whose mean has macro-F1 "
            f"{report.get('teachers_together_dev_macro_f1')} on the dev sentences.\n"
        )
    return text + (f"\n    {command}\n" if command else "")
