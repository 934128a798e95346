"""Registry of codes: what each means, what to do, and the exit status of its family. `docs/codes.md` is generated from it."""

from dataclasses import dataclass

# Exit statuses by family. 130 is what shells report for Ctrl-C; 143 for SIGTERM.
FAMILIES = {
    "inform": (0, "nothing is wrong"),
    "internal": (70, "a fault of this program"),
    "config": (2, "settings and arguments"),
    "host": (3, "platform, tools, Python"),
    "docker": (4, "Docker"),
    "gpu": (5, "GPUs"),
    "disk": (6, "disk space"),
    "port": (7, "ports"),
    "lock": (8, "another start, stop or prepare is at work"),
    "pin": (9, "pinned engine and patches"),
    "image": (10, "building the engine"),
    "weights": (11, "checkpoint and drafter"),
    "devices": (12, "the way between the GPUs, tuning"),
    "start": (13, "starting the server"),
    "api": (14, "the server does not get ready"),
    "smoke": (15, "the server answers wrongly"),
    "stop": (16, "stopping the server"),
    "verify": (18, "verifying a server"),
    "log": (17, "logs and archives"),
    "interrupt": (130, "interrupted"),
}


@dataclass(frozen=True)
class Code:
    """`meaning` ends the sentence "this says that ..."; `remedy` is what the user does."""

    name: str
    meaning: str
    remedy: str = "nothing to do"
    family: str = "inform"

    @property
    def status(self) -> int:
        return FAMILIES[self.family][0]


_ALL = (
    Code("I_DRY_RUN", "only the plan is shown; nothing was created, asked or started"),
    Code("I_PLATFORM", "the platform is supported"),
    Code("I_DEPENDENCY", "the tools needed are there"),
    Code("I_NVIDIA_RUNTIME", "a container gets the GPUs"),
    Code("I_GPU", "the GPUs asked for are there, or none is needed"),
    Code("I_DISK", "there is enough space for what is missing"),
    Code("I_PORT", "the port is free, or held by the server that a restart replaces"),
    Code("I_AUTH", "who needs a key for the API"),
    Code("I_KEY", "a key for the API was made, in a file that only its owner reads"),
    Code("I_HF_TOKEN", "a hub token is set, or not; its value is never shown"),
    Code("I_READY", "this step's result is there and matches its content hash; the step is skipped"),
    Code("I_TUNE", "launch tables: made, or why there are none"),
    Code("I_P2P", "bytes and sums pass between the GPUs, in both directions"),
    Code("I_RUNNING", "a server runs already and is re-attached"),
    Code("I_STOPPED", "no server runs"),
    Code("I_RECOVER", "a server or engine that had died was archived and cleared away"),
    Code("I_CLEANED", "builds that nothing goes back to were removed"),
    Code("I_SERVICE", "units for systemd were written"),
    Code("I_WATCH", "what the watchdog saw, or that it is paused"),
    Code("W_WATCH", "the watchdog saw a server that is not well", "./start.sh status says more; watch pause leaves it alone"),
    Code("I_ARCHIVE", "logs were packed into an archive"),
    Code("W_SETTING", "a line of a settings file, or a key, is not used as it may have been meant", "correct the line or key named"),
    Code("W_NO_EFFECT", "a setting of another recipe was given that has nothing to act on here", "remove it; it changes nothing"),
    Code("W_SECRET_FILE", "a file with a secret in it may be read by other users", "chmod 600 it"),
    Code("W_GPU_MODEL", "a GPU is not of the kind this was measured on", "expect other speeds, and another window that fits"),
    Code("W_POWER", "a GPU's power limit is not the measured one; it is left alone", "nvidia-smi -pl sets it until a boot"),
    Code("W_THROTTLE", "a GPU keeps its clocks down before anything runs", "check cooling and power: nvidia-smi -q -d PERFORMANCE"),
    Code("W_PCIE", "a GPU's link is not what it could be, or crosses processors", "check slot and riser; choose other GPUS"),
    Code("W_LICENSE", "the DFlash2 drafter is for non-commercial use (CC BY-NC-ND 4.0)", "DRAFTER=mtp serves without it"),
    Code("W_DIFFERS", "the running server was started with other settings than those given now", "./start.sh restart applies them"),
    Code("W_OPEN_BIND", "the API listens beyond loopback and nobody needs a key", "AUTH=auto or key, or HOST=127.0.0.1"),
    Code("W_ROLLBACK", "the new server failed, and the one before it serves again", "read the archive named, then restart again"),
    Code("E_INTERNAL", "this program failed in a way it does not know", "report this line and what you did", "internal"),
    Code("E_INTERRUPTED", "the work was interrupted; the next start goes on from there", "start again when ready", "interrupt"),
    Code("E_CONFIG", "a setting or argument is outside what is allowed", "correct the setting or argument named", "config"),
    Code("E_PLATFORM", "the host is not Linux on x86_64 (or aarch64 for the embedded profile)", "use a supported host", "host"),
    Code("E_PYTHON", "no Python that fits was found", "install Python 3.11 or later (embedded: 3.11), or name it in PYTHON", "host"),
    Code("E_DEPENDENCY", "a tool is missing", "install the tools named", "host"),
    Code("E_VENV", "a Python environment cannot be made", "apt-get install python3-venv (Debian, Ubuntu), then start again", "host"),
    Code("E_SERVICE", "the units for systemd could not be written, or systemd does not take them", "read what it says of them", "host"),
    Code("E_DOCKER", "the Docker daemon does not answer", "start the daemon and check the rights on its socket", "docker"),
    Code("E_DOCKER_GROUP", "the Docker daemon's socket is closed to this user for want of its group", "join the group named", "docker"),
    Code(
        "E_GPU", "the GPUs asked for are not there", "install the NVIDIA driver or correct GPUS; PROFILE=embedded serves on the CPU", "gpu"
    ),
    Code("E_NVIDIA_RUNTIME", "Docker gives a container no GPU", "install and configure the NVIDIA Container Toolkit", "docker"),
    Code("E_GPU_BUSY", "another program uses a GPU", "end the program named, or choose other GPUS", "gpu"),
    Code("E_GPU_MEMORY", "a GPU has too little free memory", "end other work on it, or lower MIN_GPU_FREE_MIB", "gpu"),
    Code("E_GPU_HOT", "a GPU is too hot to begin with", "let it cool, check fans and air; MAX_GPU_CELSIUS is the limit", "gpu"),
    Code("E_KEY", "the file of the API key cannot be used", "correct or remove it: a start makes a missing one", "config"),
    Code("E_LICENSE", "the licence of the drafter was not accepted", "DRAFTER=mtp ./start.sh serves without it", "config"),
    Code("E_DISK", "a filesystem has less free space than is needed", "free space there, or move DATA_DIR or MODEL_DIR", "disk"),
    Code("E_PORT", "the port is taken", "stop its owner, or choose another PORT", "port"),
    Code("E_LOCK", "another start, restart, stop or prepare is at work", "wait for it to end", "lock"),
    Code("E_PIN", "the engine's files are not the pinned tree", "commit and ./start.sh patches pin, or undo the edit", "pin"),
    Code("E_PATCHES", "the patch series does not apply exactly", "restore patches/, or ./start.sh patches refresh", "pin"),
    Code("E_IMAGE", "the engine could not be built", "read the log named; check disk and network; no torch: PIP_EXTRA_INDEX_URL", "image"),
    Code(
        "E_OFFLINE",
        "something has to be fetched and OFFLINE=1 forbids it",
        "./start.sh prepare with a network, or bring DATA_DIR and the base image (docker load) from a host that has them",
        "image",
    ),
    Code(
        "E_WEIGHTS",
        "files of the checkpoint are missing or differ from their manifest",
        "restore the files named (embedded: git checkout -- embedded)",
        "weights",
    ),
    Code("E_DOWNLOAD", "the download from the hub failed", "check space, network and HF_TOKEN; starting again resumes", "weights"),
    Code("W_P2P", "the GPUs exchange through host memory (P2P=off): slower than directly", "P2P=on once their way is repaired"),
    Code(
        "E_P2P",
        "bytes do not pass between the GPUs as they were sent, or not at all",
        "P2P=off serves through host memory, slower; to repair it, turn ACS and IOMMU off in the firmware, or choose other GPUS",
        "devices",
    ),
    Code(
        "E_AUTOTUNE",
        "the kernels could not be tuned; nothing half done is used",
        "read the compiler's words; leave the GPUs idle and start again, or serve without: TUNE=0",
        "devices",
    ),
    Code("E_START", "the server could not be started, or ended while it was loading", "read the log named", "start"),
    Code(
        "E_CONTEXT",
        "the window does not fit the memory of this machine",
        "lower CONTEXT to the largest window named, or PARALLEL; KV=fp8 makes a token smaller",
        "start",
    ),
    Code("E_ROLLBACK", "there is no build to go back to", "undo the change in engine/ or patches/, then ./start.sh restart", "start"),
    Code("E_API", "the server was not ready in time", "read the log; raise WAIT_TIMEOUT if it still loads; restart it if it hangs", "api"),
    Code("E_SMOKE", "an answer to the smoke test is not acceptable", "read smoke.json and the log, then ./start.sh restart", "smoke"),
    Code(
        "E_COLLAPSED",
        "an answer to the smoke test is the same characters over and over: the model's numbers have gone wrong",
        "read smoke.json, then try DENSE=bf16 KV=bf16; if that collapses too, suspect the weights or a GPU",
        "smoke",
    ),
    Code("E_AUTH", "the server lets in who has no key", "do not leave it running; check AUTH and what stands before it", "smoke"),
    Code("E_STOP", "the server could not be stopped", "end the process or container named by hand, then ./stop.sh again", "stop"),
    Code("E_LOG", "a log folder or archive could not be written", "check space and rights of LOG_DIR, try again; raw logs are kept", "log"),
    Code("E_UNCHECKED", "the server has nothing of what was to be verified", "start it with the settings named", "verify"),
)

CODES: dict[str, Code] = {code.name: code for code in _ALL}
