"""A day with the command line, timed: train, resume, inspect, generate, test on circuits and with shots, export.

    python examples/walkthrough.py FOLDER [--steps 100]

Everything is written to FOLDER, which must not exist. No network is needed.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from lightning_modules import BracketMatcher, CharLanguageModel
from lightning_modules.cli import main as hybrid_attention

CONFIGS = Path(__file__).parents[1] / "configs"
TEXT = "now is the winter of our discontent made glorious summer by this sun of york;\n" * 50


def walk(folder: Path, steps: int) -> dict[str, float]:
    """Take every step of the day in a folder, and return how long each took, in seconds."""
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text(TEXT)
    quiet = ["--trainer.enable_progress_bar=false"]
    no_logger = [*quiet, "--trainer.logger=false", f"--trainer.default_root_dir={folder}"]
    half = max(steps // 2, 1)
    run = [*quiet, f"--trainer.max_steps={steps}", f"--trainer.val_check_interval={half}", "--test_after_fit=false"]
    run += ["--checkpoint.save_top_k=-1", f"--trainer.logger.init_args.save_dir={folder}"]
    brackets = ["--config", str(CONFIGS / "brackets.yaml"), "--data.init_args.context_length=8"]
    brackets += ["--data.init_args.num_types=3", f"--data.init_args.num_train={64 * half}"]
    text = ["--config", str(CONFIGS / "tiny_shakespeare.yaml"), f"--data.init_args.source={folder / 'text.txt'}"]
    few = ["--data.init_args.num_test=64", "--data.init_args.batch_size=32"]
    circuit = ["--config", str(CONFIGS / "layers/dqa.yaml")]
    first, checkpoint = folder / "brackets/version_0/checkpoints", folder / "brackets/version_1/checkpoints/last.ckpt"
    of_text = folder / "tiny_shakespeare/version_0/checkpoints/last.ckpt"
    seconds: dict[str, float] = {}

    def timed(name: str, arguments: Sequence[str]) -> None:
        print(f"\n== {name}: hybrid-attention {' '.join(arguments)}", flush=True)
        start = time.perf_counter()
        hybrid_attention(list(arguments))
        seconds[name] = time.perf_counter() - start

    timed("train on brackets", ["fit", *brackets, *run])
    (middle,) = first.glob(f"*step={half}.ckpt")
    timed("resume", ["fit", *brackets, *run, f"--ckpt_path={middle}"])
    timed("train on text", ["fit", *text, *run])
    timed("inspect a word", ["inspect", f"--ckpt_path={checkpoint}", "--word=([]{})", f"--output={folder / 'word'}"])
    timed("inspect a text", ["inspect", f"--ckpt_path={of_text}", "--text=now is the", f"--output={folder / 'text'}"])
    written = ["--prompt=now is", "--max_new_characters=80", "--seed=1"]
    timed("generate", ["generate", f"--ckpt_path={of_text}", *written])
    timed("test on circuits", ["test", f"--ckpt_path={checkpoint}", *circuit, *few, *no_logger])
    shots = ["--model.init_args.layer.init_args.shots=200"]
    timed("test with shots", ["test", f"--ckpt_path={checkpoint}", *circuit, *shots, *few, *no_logger])
    start = time.perf_counter()
    export(checkpoint, folder / "weights.pt")
    CharLanguageModel.load_from_checkpoint(of_text)
    seconds["export"] = time.perf_counter() - start
    return seconds


def export(checkpoint: Path, path: Path) -> None:
    """Write the weights of a checkpoint alone, and read them back."""
    model = BracketMatcher.load_from_checkpoint(checkpoint).eval()
    torch.save(model.model.state_dict(), path)
    model.model.load_state_dict(torch.load(path, weights_only=True))


def main() -> None:
    """Read the arguments, walk, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100, help="Training steps of each run.")
    given = parser.parse_args()
    if given.folder.exists():
        raise SystemExit(f"{str(given.folder)!r} exists: give a folder that does not.")
    for name, value in walk(given.folder, given.steps).items():
        print(f"{name:20} {value:6.1f} s")


if __name__ == "__main__":
    main()
