"""Step 3: the checkpoint and the drafter, at pinned revisions or as this repository ships them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from recipe import files, secrets
from recipe.adapters import hub
from recipe.config import Config
from recipe.environment import Environment
from recipe.job import Job
from recipe.plan import Action, Command, Task, run_actions

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Snapshot:
    """One repository of the hub at one revision, and the setting that names its folder."""

    repository: str
    revision: str
    place: str


CHECKPOINT = Snapshot("Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold", "78353f1f6eb2c96fa6c62de57b44345d1f497c38", "MODEL_DIR")
DRAFTER = Snapshot("incoai/GLM-5.3-Flash-DFlash2", "bf582e4eacc1810f76656d1811693ff6c6737d2a", "DFLASH2_DIR")


def snapshots(config: Config) -> tuple[Snapshot, ...]:
    return (CHECKPOINT, DRAFTER) if config.text("DRAFTER") == "dflash2" else (CHECKPOINT,)


class PublishedWeights:
    title = "Weights: the published checkpoint"

    def __init__(self, job: Job, host_tools: Environment) -> None:
        self._job = job
        self._host_tools = host_tools

    def _folder(self, snapshot: Snapshot) -> Path:
        return self._job.config.folder(snapshot.place)

    def is_complete(self, snapshot: Snapshot) -> bool:
        return hub.is_complete(self._folder(snapshot), snapshot.revision)

    def is_ready(self) -> bool:
        return all(self.is_complete(snapshot) for snapshot in snapshots(self._job.config))

    def _download(self, snapshot: Snapshot) -> Command:
        config = self._job.config
        token = secrets.hub_token(config)
        told = {
            "PYTHONPATH": str(config.root / "scripts"),
            "HF_ENDPOINT": config.text("HF_ENDPOINT"),
            "HF_HUB_OFFLINE": config.text("OFFLINE"),
        }
        words = (str(self._host_tools.python), "-m", "recipe.adapters.hub", snapshot.repository, snapshot.revision)
        words += (str(self._folder(snapshot)), config.text("STALL_TIMEOUT"))
        given = {"HF_TOKEN": token} if token else None
        return self._job.command(
            "E_DOWNLOAD", "env", *(f"{name}={text}" for name, text in told.items()), *words, secrets=given, is_long=True
        )

    def actions(self) -> Sequence[Action]:
        return tuple(self._download(snapshot) for snapshot in snapshots(self._job.config))

    def run(self) -> None:
        for snapshot in snapshots(self._job.config):
            if not self.is_complete(snapshot):
                self._download(snapshot).run()


class ShippedWeights:
    """The embedded checkpoint: nothing is downloaded, every file is compared with the manifest, at every start."""

    title = "Weights: the embedded checkpoint"

    def __init__(self, job: Job) -> None:
        self._job = job
        self._place = job.config.folder("MODEL_DIR")

    def is_ready(self) -> bool:
        """Never: reading the 12 MiB takes less time than trusting a marker would save."""
        return False

    def actions(self) -> Sequence[Action]:
        return (Task(f"compare size and SHA-256 of every file in {self._place} with {MANIFEST}", self._verify),)

    def run(self) -> None:
        run_actions(self)

    def _verify(self) -> None:
        told = files.read_json(self._place / MANIFEST)
        listed = told.get("files") if told else None
        if not isinstance(listed, dict) or not listed:
            raise Failure("E_WEIGHTS", found=f"no list of files in {self._place / MANIFEST}", needed="the manifest of the checkpoint")
        wrong = [name for name, facts in listed.items() if not _is_same(self._place / name, facts)]
        if wrong:
            found = f"missing or different: {', '.join(sorted(wrong))}"
            raise Failure("E_WEIGHTS", found=found, needed=f"the {len(listed)} files of {MANIFEST}")
        self._job.ui.inform("I_READY", f"{len(listed)} files equal their manifest")


def _is_same(path: Path, facts: dict[str, object]) -> bool:
    try:
        return path.stat().st_size == facts.get("bytes") and files.sha256(path) == facts.get("sha256")
    except OSError:
        return False
