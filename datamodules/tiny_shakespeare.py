"""Tiny Shakespeare, or any other text in three splits, for next-character prediction."""

import codecs
import re
from pathlib import Path

import pytorch_lightning as pl
from torch import Tensor
from torch.utils.data import DataLoader

from datamodules.tensor_batches import batches
from datamodules.text import encode, vocabulary_of, windows

_TINY_SHAKESPEARE = "karpathy/tiny_shakespeare"
_REVISION = "fe12e06d82fe3af4291b90426557387520d81385"
_SPLITS = ("train", "validation", "test")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_UTF_8 = "utf-8"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_FILE_SUFFIXES = {".csv", ".json", ".jsonl", ".parquet", ".text", ".txt"}


class TinyShakespeareDataModule(pl.LightningDataModule):
    """Windows of a text; batches are (tokens, next tokens), both int64 (B, T).

    The vocabulary is that of the training text. Validation and test windows follow one another, so that each character
    is scored once.

    Args:
        context_length: characters T in a window.
        source: a dataset on the Hugging Face Hub with a column "text" and the splits train, validation and test; or a
            local folder of the same layout; or a local text file, of which the first 90 % are for training, then 5 %
            for validation and 5 % for testing.
        revision: commit of the dataset on the Hub; by default a fixed one of karpathy/tiny_shakespeare, and the newest
            of any other.
        batch_size: windows in a batch.
        stride: from the start of a training window to that of the next.
        num_workers: processes that load batches; 0 is fastest, as the text lies in memory.
        encoding: of a local text file, as Python names it, such as latin-1 or utf-16; a byte-order mark is dropped, and
            every line ends in a newline alone, whatever the file has.

    Raises:
        ValueError: if an argument is not allowed or the source does not exist; and when the text is first needed, if it
            cannot be read, a split is shorter than one window, or one holds characters that the training text lacks.

    Cost: O(characters) memory; windows are views. Source: arXiv 2606.12478, Tiny Shakespeare.
    """

    def __init__(
        self,
        context_length: int,
        source: str | Path = _TINY_SHAKESPEARE,
        revision: str | None = None,
        batch_size: int = 64,
        stride: int = 1,
        num_workers: int = 0,
        encoding: str = _UTF_8,
    ) -> None:
        super().__init__()
        source = str(source)  # a checkpoint holds no Path
        for name, value in {"context_length": context_length, "batch_size": batch_size, "stride": stride}.items():
            if value < 1:
                raise ValueError(f"{name}={value} was given: give 1 or more.")
        if num_workers < 0:
            raise ValueError(f"num_workers={num_workers} was given: give 0 or more.")
        if not (source and Path(source).exists()) and not _may_be_on_the_hub(source):
            raise ValueError(
                f"There is no file or folder {source!r}: give a text file, a folder in the layout of the Hub's "
                "dataset, or a dataset's name such as karpathy/tiny_shakespeare."
            )
        try:
            "a".encode(encoding)
        except LookupError as error:
            raise ValueError(
                f"encoding={encoding!r} was given, which Python does not know for text: give a name such as utf-8, "
                "latin-1 or utf-16."
            ) from error
        self.save_hyperparameters(logger=False)
        self.hparams["_class_path"] = "datamodules.TinyShakespeareDataModule"
        self.context_length = context_length
        self.source = source
        self.revision = _REVISION if revision is None and source == _TINY_SHAKESPEARE else revision
        self.batch_size = batch_size
        self.stride = stride
        self.num_workers = num_workers
        self.encoding = encoding
        self._texts: dict[str, str] | None = None
        self._vocabulary: str | None = None
        self._ids: dict[str, Tensor] | None = None

    @property
    def vocabulary(self) -> str:
        """The characters of the training text in the order of their token ids; reads the text on first use."""
        if self._vocabulary is None:
            self._vocabulary = vocabulary_of(self._read()["train"])
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of token ids; reads the text on first use."""
        return len(self.vocabulary)

    def setup(self, stage: str | None = None) -> None:
        """Encode the text, once."""
        if self._ids is not None:
            return
        vocabulary, ids = self.vocabulary, {}
        for split, text in self._read().items():
            try:
                ids[split] = encode(text, vocabulary)
                windows(ids[split], self.context_length, 1)
            except ValueError as error:
                raise ValueError(f"In the {split} split of {self.source!r}: {error}") from None
        self._ids = ids

    def train_dataloader(self) -> DataLoader:
        """Return the training batches, shuffled."""
        return self._loader("train", self.stride, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Return the validation batches."""
        return self._loader("validation", self.context_length)

    def test_dataloader(self) -> DataLoader:
        """Return the test batches."""
        return self._loader("test", self.context_length)

    def predict_dataloader(self) -> DataLoader:
        """Return the test batches."""
        return self._loader("test", self.context_length)

    def _loader(self, split: str, stride: int, shuffle: bool = False) -> DataLoader:
        self.setup()
        assert self._ids is not None
        inputs, targets = windows(self._ids[split], self.context_length, stride)
        return batches(inputs, targets, self.batch_size, shuffle, self.num_workers)

    def _read(self) -> dict[str, str]:
        if self._texts is None:
            path = Path(self.source)
            texts = _read_file(path, self.encoding) if path.is_file() else _load_dataset(self.source, self.revision)
            if not texts["train"]:
                raise ValueError(f"The training text of {self.source!r} is empty: give a text of some length.")
            self._texts = texts
        return self._texts


def _may_be_on_the_hub(source: str) -> bool:
    """Return whether a source has the form owner/name, and no local file's extension."""
    return bool(_HUB_NAME.fullmatch(source)) and Path(source).suffix.lower() not in _FILE_SUFFIXES


def _read_file(path: Path, encoding: str) -> dict[str, str]:
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig" if codecs.lookup(encoding).name == _UTF_8 else encoding)
    except UnicodeError as error:
        likely = "utf-16" if content.startswith(_UTF_16_MARKS) else "latin-1"
        raise ValueError(
            f"{str(path)!r} is not {encoding.upper()} text ({error}): set data.init_args.encoding to what it is, "
            f"such as {likely}, or convert it to UTF-8, as by iconv -f {likely} -t utf-8."
        ) from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    train = len(text) * 9 // 10
    validation = train + (len(text) - train) // 2
    return {"train": text[:train], "validation": text[train:validation], "test": text[validation:]}


def _load_dataset(source: str, revision: str | None) -> dict[str, str]:
    import datasets  # takes a second

    local = Path(source).is_dir()
    try:
        # streaming reads the files where they are, with neither a cache nor progress bars
        where = {"streaming": True} if local else {"revision": revision}
        loaded = datasets.load_dataset(source, **where)
        missing = [split for split in _SPLITS if split not in loaded or "text" not in (loaded[split].features or {})]
        texts = {} if missing else {split: "".join(row["text"] for row in loaded[split]) for split in _SPLITS}
    except Exception as error:
        advice = (
            "give a folder in the layout of the Hub's dataset"
            if local
            else "check the name and the network, or give a local folder or text file"
        )
        raise ValueError(f"The dataset {source!r} cannot be loaded ({_first_line(error)}): {advice}.") from error
    if missing:
        raise ValueError(
            f"The dataset {source!r} has no column 'text' in {', '.join(missing)}: give one with the splits "
            f"{', '.join(_SPLITS)}, each with a column 'text'."
        )
    return texts


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
