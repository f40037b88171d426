"""bambi-news20: BAMBI tunes how strongly each organisation's words are regularised, on 20 Newsgroups (VFHO).

BAMBI (the paper), appendix E.4, figures 7 and 9. Groups of `comp`, `rec` and `misc` are one class and all others the
other; 40 % of the documents train the model, 40 % its coefficients, the rest is the test. Words are tf-idf, dealt in
turn to l parties, which keep them sparse. The paper draws curves of the training accuracy and prints no figure.

    l=…            l parties with one coefficient each; `pooled` has all words at one place and one coefficient
    once eps=…     with label privacy: one draw
    best of grid   scikit-learn with the best of seven coefficients on the documents that tune ours
    fixed          no tuning: scikit-learn at the coefficient where the search begins

differs from the paper: exact hyper-gradients (implicit) in place of zeroth order, Newton steps below, coefficients as
logarithms, and whole documents with their headers left out.

    20 Newsgroups   the bydate archive; `data` is a folder with news20/20news-bydate.tar.xz

    parley reproduce bambi-news20 --data DIR [--quick] [--json FILE] [--plot FILE]
"""

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from parley.numerics.streams import stream
from parley.simulation.runs import train_tables
from parley.spec.rows import divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table

Row = dict[str, Any]
ARCHIVE = Path("news20") / "20news-bydate.tar.xz"
FIRST_CLASS = ("comp", "rec", "misc")
WORDS, QUICK_WORDS, QUICK_DOCUMENTS = 12_000, 1500, 2500
START = 1e-3
"""γ of γ‖y‖² where the search begins."""
GRID = (1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2)
EPSILONS = (1.0, 5.0, 10.0)


class NewsMissing(FileNotFoundError):
    """The experiment was not told where 20 Newsgroups is."""


@dataclass(frozen=True)
class News:
    """Documents as sparse rows of tf-idf."""

    words: csr_matrix
    labels: NDArray[np.int64]
    """1 for the first class."""

    @property
    def ids(self) -> NDArray[np.str_]:
        """A name for each document."""
        return np.array([f"{row:05d}" for row in range(len(self.labels))])


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:
    """Test accuracy of every case; `quick` takes 2500 documents and 1500 words."""
    news = load_news(data, QUICK_WORDS if quick else WORDS, QUICK_DOCUMENTS if quick else None)
    steps = 6 if quick else 20
    rows: list[Row] = []
    for parties in (1, 3) if quick else (1, 3, 5):
        name = "pooled" if parties == 1 else f"l={parties}"
        rows += _rows(name, trained(news, parties, steps=steps, seed=seed))
    for epsilon in EPSILONS[:1] if quick else EPSILONS:
        rows += _rows(f"once eps={epsilon:g}", trained(news, 3, steps=steps, seed=seed, epsilon=epsilon))
    for name, accuracy in alone(news, seed).items():
        rows.append({"case": name, "metric": "accuracy", "ours": accuracy, "paper": None})
    return rows


def load_news(data: Path | None, words: int, documents: int | None) -> News:
    """tf-idf of the most frequent words, at most so many documents in the archive's order dealt by a fixed draw."""
    path = (data or Path("data")) / ARCHIVE
    if not path.exists():
        raise NewsMissing(f"{path} is not there: give the folder that has {ARCHIVE} as --data")
    texts, labels = [], []
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)) is not None:
                _, group, _ = member.name.split("/")
                texts.append(file.read().decode("latin-1").partition("\n\n")[2])
                labels.append(group.split(".")[0] in FIRST_CLASS)
    chosen = np.random.default_rng(0).permutation(len(texts))[:documents]
    vectoriser = TfidfVectorizer(max_features=words, stop_words="english", sublinear_tf=True, dtype=np.float64)
    matrix = csr_matrix(vectoriser.fit_transform([texts[row] for row in chosen]))
    return News(matrix, np.array(labels, dtype=np.int64)[chosen])


def spec_of(parties: int, *, steps: int, seed: int, epsilon: float | None) -> RunSpec:
    """A run that tunes one coefficient for each party."""
    labels = {"mechanism": "off"} if epsilon is None else {"mechanism": "once", "epsilon": epsilon}
    return RunSpec.model_validate(
        {
            "name": "news20",
            "seed": seed,
            "dtype": "float64",
            "parties": [f"party-{m}" for m in range(parties)],
            "split": {"lower": 0.4, "upper": 0.4, "test": 0.2},
            "train": {
                "algorithm": "bambi",
                "problem": "hyper_parameters",
                "hypergradient": "implicit",
                "loss": "logistic",
                "coefficients": "party",
                "regularisation": START,
                "upper": {"steps": steps, "batch": 1000, "optimiser": {"kind": "adam", "step": 0.5}},
                "lower": {"solver": "newton", "steps": 2, "batch": 1000, "warmup_steps": 3},
                "implicit": {"preconditioner": False},
            },
            "privacy": {"aggregation": {"kind": "plain", "minimum_parties": min(2, parties)}, "labels": labels},
            "evaluate_every": 0,
        }
    )


def trained(news: News, parties: int, *, steps: int, seed: int, epsilon: float | None = None) -> dict[str, float]:
    """Metrics of a run; words are dealt to the parties in turn."""
    tables = []
    for m in range(parties):
        words = np.arange(m, news.words.shape[1], parties)
        tables.append(Table(news.ids, news.words[:, words], [f"w{word}" for word in words], f"party-{m}"))
    known = Labels(news.ids, news.labels, ("other", "first"))
    return dict(train_tables(spec_of(parties, steps=steps, seed=seed, epsilon=epsilon), tables, known).metrics)


def alone(news: News, seed: int) -> dict[str, float]:
    """scikit-learn on the same documents: the best of a grid, and the coefficient where the search begins."""
    sets = divide(spec_of(2, steps=1, seed=seed, epsilon=None).split, len(news.labels), stream(seed, "split"))
    fitted = {}
    for gamma in GRID:
        model = LogisticRegression(C=1 / (2 * gamma * len(sets.lower)), max_iter=2000)
        fitted[gamma] = model.fit(news.words[sets.lower], news.labels[sets.lower])
    best = max(GRID, key=lambda gamma: fitted[gamma].score(news.words[sets.upper], news.labels[sets.upper]))
    test = news.words[sets.test], news.labels[sets.test]
    return {"best of grid": fitted[best].score(*test), "fixed": fitted[START].score(*test)}


def plot(rows: list[Row], path: Path) -> None:
    """Draw the accuracies as bars."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["metric"] == "accuracy"]
    figure = Figure(figsize=(7, 0.45 * len(shown) + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.barh([row["case"] for row in shown], [row["ours"] for row in shown], color="#4c78a8")
    axes.set_xlim(0.5, 1.0)
    axes.set_xlabel("test accuracy")
    axes.invert_yaxis()
    figure.savefig(path)


def _rows(case: str, metrics: dict[str, float]) -> list[Row]:
    print(f"{case}: {metrics['test accuracy']:.4f}", flush=True)
    return [{"case": case, "metric": "accuracy", "ours": metrics["test accuracy"], "paper": None}]
