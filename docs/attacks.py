"""What attacks recover with and without each protection: mounts them, and writes docs/attacks.md.

python docs/attacks.py         about a minute
"""

from pathlib import Path

from parley.attacks.findings import MEANINGS, Finding
from parley.attacks.protections import attack_protections
from parley.attacks.suite import ATTACKS

PAGE = Path(__file__).with_suffix(".md")


def page(found: list[tuple[str, Finding]]) -> str:
    """The page for findings."""
    lines = [
        "# Attacks",
        "",
        "Written by `python docs/attacks.py`, which mounts every attack of `parley attack` without and with the",
        "protection against it, on made-up tables of random features and labels: whatever is found was found in what",
        "crosses. `parley attack all --json FILE` does the same and writes the figures. Attack a spec of your own",
        "before it runs with `parley attack SPEC.YAML`; `parley doctor --strict SPEC.YAML` refuses one under which an",
        "attack succeeds. [The threat model](threat-model.md) says who can mount them.",
        "",
        "| setting | attack | by | recovered | guarantee | verdict |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {setting} | {f.attack} | {f.adversary} | {f.recovered} | {f.guarantee} | {f.verdict} |"
        for setting, f in found
    ]
    lines += ["", "| verdict | means |", "|---|---|"]
    lines += [f"| {verdict} | {meaning} |" for verdict, meaning in MEANINGS.items()]
    lines += ["", "| name | attack |", "|---|---|"]
    lines += [f"| `{name}` | {each.summary} |" for name, each in ATTACKS.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(list(attack_protections())))
