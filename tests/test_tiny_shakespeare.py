"""TinyShakespeareDataModule on text files and dataset folders, without a network."""

import copy
import pickle
import re
from pathlib import Path

import datasets
import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from datamodules import TinyShakespeareDataModule

REAL_TEXT = Path(__file__).parent.parent.parent / "shared" / "data" / "tiny_shakespeare"
TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 20
needs_real_text = pytest.mark.skipif(not REAL_TEXT.is_dir(), reason=f"no Tiny Shakespeare at {REAL_TEXT}")


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def write_folder(path, **splits):
    """A dataset folder in the layout of the Hub: one row of text per split."""
    for split, rows in splits.items():
        columns = rows if isinstance(rows, dict) else {"text": [rows] if isinstance(rows, str) else rows}
        (path / "data").mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(columns).to_parquet(path / "data" / f"{split}-00000-of-00001.parquet")
    return path


def texts(data):
    """The characters that each split's batches show, first inputs and then every target, in order."""
    shown = []
    for loader in (data.val_dataloader(), data.test_dataloader()):
        found = list(loader)
        ids = [found[0][0][:1, 0], *(targets.flatten() for _, targets in found)]
        shown.append("".join(data.vocabulary[i] for i in torch.cat(ids).tolist()))
    return shown


def parts(text):
    train = len(text) * 9 // 10
    validation = train + (len(text) - train) // 2
    return text[:train], text[train:validation], text[validation:]


def test_vocabulary_is_there_before_setup_and_is_that_of_the_training_text(text_file):
    data = TinyShakespeareDataModule(8, source=str(text_file))
    assert data.vocabulary == "".join(sorted(set(parts(TEXT)[0])))
    assert data.vocab_size == len(data.vocabulary)


def test_the_text_is_read_once(text_file):
    data = TinyShakespeareDataModule(8, source=str(text_file))
    vocabulary = data.vocabulary
    text_file.unlink()
    data.setup()
    assert data.vocabulary is vocabulary


def test_targets_are_the_next_characters_at_every_position(text_file):
    data = TinyShakespeareDataModule(8, source=str(text_file), batch_size=50)
    data.setup()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        for tokens, targets in loader:
            assert tokens.dtype == targets.dtype == torch.int64
            assert tokens.shape == targets.shape == (len(tokens), 8)
            assert torch.equal(tokens[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("stride", [1, 3])
def test_training_windows_start_at_every_multiple_of_the_stride(text_file, stride):
    data = TinyShakespeareDataModule(8, source=str(text_file), stride=stride)
    data.setup()
    train = parts(TEXT)[0]
    expected = sorted(train[start : start + 9] for start in range(0, len(train) - 8, stride))
    found = [torch.cat((tokens[:, :1], targets), dim=1) for tokens, targets in data.train_dataloader()]
    assert sorted("".join(data.vocabulary[i] for i in row) for row in torch.cat(found).tolist()) == expected


def test_validation_and_test_score_each_character_once(text_file):
    data = TinyShakespeareDataModule(8, source=str(text_file), batch_size=3, stride=5)
    data.setup()
    for shown, part in zip(texts(data), parts(TEXT)[1:], strict=True):
        assert part.startswith(shown)
        assert len(part) - len(shown) < 8


def test_a_folder_of_the_hubs_layout_gives_its_own_splits(tmp_path):
    folder = write_folder(tmp_path / "folder", train=TEXT, validation=TEXT[:50], test=["First ", "Citizen:\n"])
    data = TinyShakespeareDataModule(2, source=str(folder))
    data.setup()
    assert texts(data) == [TEXT[:49], "First Citizen:\n"]


def test_a_folder_is_read_without_progress_bars_and_without_a_cache(tmp_path, monkeypatch, capfd):
    folder = write_folder(tmp_path / "folder", train=TEXT, validation=TEXT[:50], test=TEXT[:50])
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    capfd.readouterr()
    assert TinyShakespeareDataModule(2, source=str(folder)).vocab_size == len(set(TEXT))
    assert "".join(capfd.readouterr()) == ""
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_a_folder_is_read_anew_when_it_changes(tmp_path):
    folder = write_folder(tmp_path / "folder", train="abcabc", validation="abc", test="abc")
    assert TinyShakespeareDataModule(1, source=str(folder)).vocabulary == "abc"
    write_folder(folder, train="abcabd")
    assert TinyShakespeareDataModule(1, source=str(folder)).vocabulary == "abcd"


def test_a_byte_order_mark_and_windows_line_ends_are_dropped(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"ab\r\n" * 100)
    assert TinyShakespeareDataModule(2, source=str(path)).vocabulary == "\nab"


def test_a_path_will_do_and_is_kept_as_plain_text(text_file, tmp_path):
    data = TinyShakespeareDataModule(8, source=text_file)
    assert data.source == data.hparams["source"] == str(text_file)
    assert data.vocab_size == len(set(TEXT))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_copies_hold_the_same_text(text_file, clone):
    data = TinyShakespeareDataModule(8, source=str(text_file))
    data.setup()
    assert texts(clone(data)) == texts(data)


def test_workers_load_the_same_batches(text_file):
    alone, helped = (TinyShakespeareDataModule(8, source=str(text_file), num_workers=number) for number in (0, 1))
    for data in (alone, helped):
        data.setup()
    for ours, theirs in zip(alone.val_dataloader(), helped.val_dataloader(), strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("name", ["context_length", "stride", "batch_size"])
def test_numbers_below_one_are_refused_at_once(text_file, name):
    with pytest.raises(ValueError, match=f"{name}=0 was given: give 1 or more"):
        TinyShakespeareDataModule(**{"context_length": 8, "source": str(text_file), name: 0})


def test_a_negative_number_of_workers_is_refused_at_once(text_file):
    with pytest.raises(ValueError, match="num_workers=-1 was given: give 0 or more"):
        TinyShakespeareDataModule(8, source=str(text_file), num_workers=-1)


@pytest.mark.parametrize(
    "source", ["nowhere.txt", "no/where.txt", "/no/where", "a/b/c", "nowhere", "~/texts", "", "../x"]
)
def test_a_source_that_is_neither_here_nor_a_hub_name_is_refused_at_once(source):
    with pytest.raises(ValueError, match=re.escape(f"no file or folder {source!r}: give a text file, a folder")):
        TinyShakespeareDataModule(8, source=source)


@pytest.mark.parametrize("source", ["karpathy/tiny_shakespeare", "user/data-v1.0", "Some_1.org/x"])
def test_a_hub_name_is_accepted_without_asking_the_hub(source):
    assert TinyShakespeareDataModule(8, source=source).source == source


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach the Hub."), RuntimeError()])
def test_an_unreachable_hub_is_told_in_one_sentence_with_what_to_do(monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    data = TinyShakespeareDataModule(8)
    with pytest.raises(ValueError, match=r"cannot be loaded .* or give a local folder or text file\.$") as caught:
        data.setup()
    assert str(error).rstrip(".") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "revision"),
    [
        ({}, "fe12e06d82fe3af4291b90426557387520d81385"),
        ({"revision": "main"}, "main"),
        ({"source": "some/other"}, None),
    ],
)
def test_the_hub_is_asked_for_the_revision_and_never_trusted_with_code(monkeypatch, settings, revision):
    asked = []

    def load(source, **kwargs):
        asked.append((source, kwargs))
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_dict({"text": ["abcab"]}) for split in ("train", "validation", "test")}
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert TinyShakespeareDataModule(2, **settings).vocabulary == "abc"
    assert asked == [(settings.get("source", "karpathy/tiny_shakespeare"), {"revision": revision})]


def test_characters_that_training_lacks_are_named_with_their_split(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab" * 90 + "abababaZbé" + "ab" * 5)
    data = TinyShakespeareDataModule(2, source=str(path))
    with pytest.raises(ValueError, match=r"In the validation split of .*not in the vocabulary \('Z', 'é'\)"):
        data.setup()


def test_a_split_shorter_than_one_window_is_named(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab" * 50)
    with pytest.raises(ValueError, match=r"In the validation split of .*has 5 characters, and one window needs 6"):
        TinyShakespeareDataModule(5, source=str(path)).setup()
    TinyShakespeareDataModule(4, source=str(path)).setup()


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused_when_the_vocabulary_is_needed(tmp_path, content):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is empty: give a text"):
        _ = TinyShakespeareDataModule(5, source=str(path)).vocabulary


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"is not UTF-8 text .*encoding to what it is, such as utf-16, or convert it"):
        _ = TinyShakespeareDataModule(5, source=str(path)).vocabulary
    with pytest.raises(ValueError, match=r"is not UTF-16 text .*: set data\.init_args\.encoding"):
        _ = TinyShakespeareDataModule(5, source=str(path), encoding="utf-16").vocabulary


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "cp1252", "utf-8", "UTF8", "utf-8-sig"])
def test_a_file_in_any_encoding_is_the_same_text(tmp_path, encoding):
    path = tmp_path / "text.txt"
    text = "déjà vu, señor\n" * 40
    path.write_bytes(text.encode(encoding))
    data = TinyShakespeareDataModule(4, source=str(path), encoding=encoding)
    assert data.vocabulary == "".join(sorted(set(text)))
    data.setup()


def test_a_latin_1_file_is_said_to_be_no_utf_8(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("café".encode("latin-1"))
    with pytest.raises(
        ValueError, match=r"not UTF-8 text \(.*0xe9 in position 3.*such as latin-1, or .* iconv -f latin-1"
    ):
        _ = TinyShakespeareDataModule(5, source=str(path)).vocabulary


@pytest.mark.parametrize("encoding", ["utf-9", "base64", "hex", ""])
def test_an_encoding_that_does_not_exist_is_refused_at_once(text_file, encoding):
    with pytest.raises(ValueError, match=f"encoding='{encoding}' was given, which Python does not know"):
        TinyShakespeareDataModule(8, source=text_file, encoding=encoding)


def test_old_line_ends_are_newlines_too(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"ab\rcd\r\n" * 50)
    assert TinyShakespeareDataModule(2, source=str(path)).vocabulary == "\nabcd"


def test_a_folder_without_a_dataset_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"cannot be loaded .*: give a folder in the layout of the Hub's dataset"):
        _ = TinyShakespeareDataModule(5, source=str(tmp_path / "empty")).vocabulary


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": TEXT, "test": TEXT}, r"no column 'text' in validation: give one with the splits"),
        ({name: {"line": [TEXT]} for name in ("train", "validation", "test")}, r"in train, validation, test: give one"),
        ({"train": TEXT, "validation": {"line": [TEXT]}, "test": TEXT}, r"cannot be loaded \(Couldn't cast\): give a"),
        ({"train": TEXT, "validation": TEXT, "test": [None, TEXT]}, r"cannot be loaded .*: give a folder"),
    ],
)
def test_a_dataset_without_a_split_or_its_text_is_refused(tmp_path, splits, message):
    folder = write_folder(tmp_path / "folder", **splits)
    with pytest.raises(ValueError, match=message) as caught:
        _ = TinyShakespeareDataModule(5, source=str(folder)).vocabulary
    assert "\n" not in str(caught.value)


class NextCharacter(pl.LightningModule):
    """The next character from this one alone."""

    def __init__(self, vocab_size):
        super().__init__()
        self.logits = nn.Embedding(vocab_size, vocab_size)

    def training_step(self, batch, batch_idx):
        tokens, targets = batch
        return nn.functional.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_lightning_trains_and_tests(text_file):
    data = TinyShakespeareDataModule(8, source=str(text_file))
    model = NextCharacter(data.vocab_size)
    trainer = pl.Trainer(
        accelerator="cpu", fast_dev_run=True, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, datamodule=data)
    assert trainer.test(model, datamodule=data, verbose=False)[0]["val_loss"] > 0


@needs_real_text
def test_tiny_shakespeare_has_its_published_sizes_from_the_folder_and_from_the_file():
    loaded = []
    for source in (REAL_TEXT, REAL_TEXT / "input.txt"):
        data = TinyShakespeareDataModule(12, source=str(source))
        data.setup()
        assert data.vocab_size == 65
        assert len(data.train_dataloader().dataset) == 1_003_854 - 12
        assert len(data.val_dataloader().dataset) == len(data.test_dataloader().dataset) == (55_770 - 1) // 12
        whole = [TinyShakespeareDataModule(length, source=str(source)) for length in (55_769, 55_770)]
        whole[0].setup()
        with pytest.raises(ValueError, match="has 55770 characters, and one window needs 55771"):
            whole[1].setup()
        loaded.append((data.vocabulary, texts(data)))
    assert loaded[0] == loaded[1]
