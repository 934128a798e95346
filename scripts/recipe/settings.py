"""Registry of the recipe's settings: name, default of each profile, what is allowed, what it means. Reads nothing; `config.py` does."""

from dataclasses import dataclass
from typing import Any

from recipe.kinds import FLAG, PRINTABLE, Kind, address, arguments, choice, decimal, folder, gpus, integer, matching, optional, variables

TWO_GPU, EMBEDDED = "two-gpu", "embedded"
PROFILES = (TWO_GPU, EMBEDDED)
DEFAULT_PROFILE = TWO_GPU

HOUR_S = 3600


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting. Defaults are texts as a user would write them; `{root}`, `{cache}` and `{NAME}` stand for places known later.

    `engine_option`: the engine's command line option that carries it. `carried_by`: variables of a server on GPUs that carry it.
    `aliases`: names of other recipes for the same thing; the setting's own name wins in the same source.
    """

    name: str
    group: str
    two_gpu: str
    embedded: str
    kind: Kind
    help: str
    unit: str = ""
    is_secret: bool = False
    engine_option: str = ""
    carried_by: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def is_fixed_at_start(self) -> bool:
        """A running server follows it only after a restart."""
        return bool(self.engine_option or self.carried_by) or self.name in FIXED_AT_START

    def default(self, profile: str) -> str:
        return self.embedded if profile == EMBEDDED else self.two_gpu


# Fixed at the start of a server by other ways than an option of the engine.
FIXED_AT_START = (
    "PROFILE", "RUNTIME", "GPUS", "CONTAINER_NAME", "NETWORK", "DRAFTER", "MODEL_DIR", "DFLASH2_DIR", "SPILL_DIR", "API_KEY_FILE",
    "TRUSTED_PROXY", "ENGINE_REPO", "ENGINE_COMMIT", "BASE_IMAGE", "TORCH", "IMAGE", "ENGINE_ARGUMENTS", "ENGINE_VARIABLES", "P2P", "TUNE",
)  # fmt: skip
# Names of published recipes that have nothing to act on here, and why.
WITHOUT_EFFECT = {
    "MASTER_PORT": "ranks of one host meet in a file in memory, without a port",
    "TENSORFOLD_API_KEY": "a key stands in a file: API_KEY_FILE, which the first start makes",
    "TF_GLM_MULTI_WINDOW": "the depth of drafts decides how many rows a round checks: DRAFT_POLICY",
    "TF_GLM_CACHE_ENTRIES": "kept prompt states are bounded by their size: KEPT_GIB",
}

_groups: list[str] = []
_registry: list[Setting] = []
# Options of the engine that this program decides: those of settings join as they are registered.
_own_options = ["model", "drafter", "api-key-file", "trusted-proxy", "device", "spill-dir", "log-dir", "launch-table"]


def _setting(name: str, default: str | tuple[str, str], kind: Kind, help_text: str, **more: Any) -> None:
    """One more of the group named last."""
    two_gpu, embedded = (default, default) if isinstance(default, str) else default
    _registry.append(Setting(name=name, group=_groups[-1], two_gpu=two_gpu, embedded=embedded, kind=kind, help=help_text, **more))


def _engine_setting(name: str, default: str | tuple[str, str], kind: Kind, help_text: str, *, option: str = "", **more: Any) -> None:
    """Carried by the engine's option of the same name, unless another is told."""
    option = option or f"--{name.lower().replace('_', '-')}"
    _setting(name, default, kind, help_text, engine_option=option, **more)
    _own_options.append(option.removeprefix("--"))


_NAME = matching(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", "1 to 128 letters, digits, '.', '_', '/' or '-', the first a letter or digit")
_DOCKER_NAME = matching(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}", "a Docker name: letters, digits, '_', '.' or '-', the first a letter or digit")
_IMAGE = matching(r"[a-z0-9][a-z0-9._/-]{0,127}", "an image name in lower case, without a tag: the build's hash is the tag")
_PINNED_IMAGE = matching(r"([a-z0-9][a-z0-9._/:-]*@)?sha256:[0-9a-f]{64}", "an image by digest: name@sha256:<64 digits>, or a local id")
_COMMIT = matching(r"[0-9a-f]{40}", "a full commit id of 40 hexadecimal digits")
_REPOSITORY = matching(r"(?!https?://[^/]*@)[^\s-][^\s]*", "a path or URL of a Git repository, without blanks, user or password")
_POLICY = matching(
    r"auto|(f?(nc|c)?|cost)[0-9]{1,2}(:(noisy|[0-9.]+)){0,2}", "auto, a number of drafts, or a word of the engine such as fnc7:0.3 or cost7"
)

_groups.append("what runs")
_setting(
    "PROFILE",
    (TWO_GPU, EMBEDDED),
    choice(*PROFILES),
    "two-gpu serves the published checkpoint, embedded this repository's tiny one on the CPU",
)
_setting(
    "RUNTIME", ("docker", "process"), choice("docker", "process"), "where the engine runs: in a container, or as a process of this host"
)
_setting("GPUS", ("0,1", "none"), gpus(2), "the devices, one a rank")
_engine_setting("HOST", ("0.0.0.0", "127.0.0.1"), address(), "address the API listens on")
_engine_setting("PORT", "8022", integer(1, 65535), "port the API listens on")
_engine_setting("SERVED_NAME", "glm-5.3-flash", _NAME, "the model's name in the API", option="--name")
_setting("CONTAINER_NAME", "glm53-tf-2x", _DOCKER_NAME, "name of the container (RUNTIME=docker)")
_setting(
    "NETWORK",
    "host",
    choice("host", "bridge"),
    "host: the server sees who asks; bridge: a network of its own with PORT led into it (RUNTIME=docker)",
)

_groups.append("the model's answers")
_engine_setting("MAX_TOKENS", ("32768", "4096"), integer(1, 1_048_576), "longest reply if a request names no limit", unit="tokens")
_engine_setting("THINKING", "0", FLAG, "1 lets the model think unless a request says otherwise")
_engine_setting(
    "REASONING_EFFORT", "high", choice("none", "minimal", "low", "medium", "high", "max"), "effort when a request turns thinking on"
)
_engine_setting("VISION", "1", FLAG, "1 takes pictures and clips, 0 serves text only")
_engine_setting(
    "LOOP_GUARD",
    "256",
    integer(0, 1 << 20),
    "tokens of a repeating cycle that end a reply; 0: never",
    unit="tokens",
    option="--guard-loops",
)

_groups.append("the engine")
_engine_setting("CONTEXT", ("524288", "32768"), integer(64, 1_048_576), "longest prompt and reply of a request together", unit="tokens")
_engine_setting("PARALLEL", "4", integer(1, 32), "requests computed at the same time; more wait in a queue")
_engine_setting("RANKS", ("2", "1"), integer(1, 2), "tensor parallel processes, on GPUs one a device; replies depend on how many")
_engine_setting(
    "DENSE",
    ("q4", "bf16"),
    choice("q4", "fp8", "bf16"),
    "number format of the large dense weight matrices; replies depend on it",
    aliases=("TF_GLM_DENSE",),
)
_engine_setting("KV", ("fp8", "bf16"), choice("fp8", "bf16"), "number format of the KV cache; replies depend on it", aliases=("TF_GLM_KV",))
_engine_setting(
    "MEMORY_RESERVE_GIB",
    ("6", "0"),
    decimal(0, 64),
    "memory of each device left for work, drafting and libraries; 0: 2 on a GPU, 0.25 on a CPU",
    unit="GiB",
    aliases=("TENSORFOLD_MEMORY_RESERVE_GIB",),
)
_engine_setting(
    "KV_POOL_GIB",
    ("3.75", "0"),
    decimal(0, 1024),
    "most KV cache of each device beyond one request of CONTEXT tokens; 0: no bound",
    unit="GiB",
    aliases=("TF_GLM_CACHE_GIB",),
)
_engine_setting("KEPT_GIB", "4", integer(0, 1024), "host memory of the prefix cache; 0: none", unit="GiB")
_engine_setting(
    "SPILL_GIB", "0", integer(0, 100_000), "disk space of each rank for prefix cache entries that leave memory; 0: none", unit="GiB"
)
_setting(
    "DRAFTER", "dflash2", choice("dflash2", "mtp", "none"), "speculative decoding: DFlash2 drafts, the checkpoint's MTP layer, or none"
)
_engine_setting(
    "DRAFT_POLICY",
    "auto",
    _POLICY,
    "how many tokens are drafted a step (docs/exactness.md); auto: cost7 for dflash2, cost3 for mtp: as many as pay by times measured",
    aliases=("TF_GLM_DFLASH_POLICY",),
)
_setting("P2P", "on", choice("on", "off"), "off: the GPUs exchange through host memory, slower, where their direct way is broken or hangs")
_setting("TUNE", ("1", "0"), FLAG, "1 has the kernels' launches measured once for these GPUs; 0 runs them as they are by default")
_setting(
    "NCCL_P2P_LEVEL",
    "SYS",
    choice("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"),
    "how far apart GPUs may be to talk directly",
    carried_by=("NCCL_P2P_LEVEL",),
)
_setting("NCCL_CHANNELS", "4", integer(1, 32), "channels between the GPUs", carried_by=("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"))
_setting("NCCL_DEBUG", "WARN", choice("VERSION", "WARN", "INFO", "TRACE"), "how much NCCL says in the log", carried_by=("NCCL_DEBUG",))
_setting("MIN_GPU_FREE_MIB", ("90000", "0"), integer(0, 1_000_000), "memory that has to be free on each GPU before the start", unit="MiB")
_setting("MAX_GPU_CELSIUS", "85", integer(30, 100), "a GPU hotter than this before the start ends it", unit="°C")
_setting(
    "ENGINE_ARGUMENTS", "", optional(arguments(_own_options)), "more options of lockstep serve, as a shell takes them: --max-queued 64"
)
_setting(
    "ENGINE_VARIABLES",
    "",
    optional(variables(("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "TRITON_", "GLOO_", "OMP_", "LOCKSTEP_"))),
    "further variables of the engine, NAME=value after NAME=value; shown in full, so nothing secret",
)
_setting("SMOKE", "right", choice("right", "any"), "answers the smoke test takes: right ones, or any (a checkpoint never trained)")

_groups.append("places")
_setting("DATA_DIR", "{cache}/glm-5.3-flash", folder(), "large things that can be made again: environments, builds, weights")
_setting("MODEL_DIR", ("{DATA_DIR}/models/GLM-5.3-Flash-EXL3-4bpw", "{root}/embedded"), folder(), "folder of the checkpoint")
_setting("DFLASH2_DIR", ("{DATA_DIR}/models/GLM-5.3-Flash-DFlash2", "{root}/embedded/drafter"), folder(), "folder of the DFlash2 drafter")
_setting("SPILL_DIR", "{DATA_DIR}/spill", folder(), "prefix cache on disk (SPILL_GIB), a folder of its own; it outlives the server")
_setting("KERNEL_CACHE", "{DATA_DIR}/kernels", folder(), "compiled kernels and launch tables, a folder for each build")
_setting("STATE_DIR", "{root}/.state", folder(), "lock, API key and record of the running server")
_setting("LOG_DIR", "{root}/logs", folder(), "run folders and archives")

_groups.append("time and space")
_setting("LOG_KEEP", "10", integer(0, 10_000), "archives kept, the newest first", unit="archives")
_setting("WAIT_TIMEOUT", ("2400", "120"), integer(1, 24 * HOUR_S), "longest wait for a started server to be ready", unit="s")
_setting("SMOKE_TIMEOUT", ("120", "60"), integer(1, HOUR_S), "longest wait for the answer of the smoke test", unit="s")
_engine_setting(
    "STOP_TIMEOUT", "30", integer(1, HOUR_S), "time a stopping server gets to finish what runs", unit="s", option="--drain-timeout"
)
_setting("GPU_WAIT_TIMEOUT", "30", integer(0, HOUR_S), "longest wait for GPU memory that an ended program has not given back", unit="s")
_setting("PEER_TIMEOUT", "60", integer(1, HOUR_S), "longest wait for bytes between the GPUs before they count as hanging", unit="s")
_setting("TUNE_TIMEOUT", "3600", integer(1, 24 * HOUR_S), "longest wait for kernels to be compiled and tuned", unit="s")
_setting("STALL_TIMEOUT", "60", integer(1, HOUR_S), "a download that brings nothing for so long is begun again", unit="s")
_setting("MODEL_FREE_GIB", ("180", "0"), integer(0, 100_000), "space asked for while the checkpoint is missing", unit="GiB")
_setting("DFLASH2_FREE_GIB", ("10", "0"), integer(0, 100_000), "space asked for while the drafter is missing", unit="GiB")
_setting("IMAGE_FREE_GIB", ("40", "3"), integer(0, 100_000), "space asked for while the engine is not built", unit="GiB")
_setting("KERNEL_FREE_GIB", ("10", "0"), integer(0, 100_000), "space asked for while kernels are not compiled", unit="GiB")

_groups.append("keys")
_setting("HF_TOKEN", "", optional(PRINTABLE), "hub token, for access or rate limits", is_secret=True, aliases=("HUGGING_FACE_HUB_TOKEN",))
_setting("HF_TOKEN_PATH", "{home}/.cache/huggingface/token", folder(), "file whose first line is the hub token where HF_TOKEN is empty")
_setting("HF_ENDPOINT", "https://huggingface.co", matching(r"https?://[A-Za-z0-9.:_/-]+", "an http or https URL"), "the hub, or a mirror")
_setting("OFFLINE", "0", FLAG, "1 fetches nothing: images, wheels and weights have to be there")
_engine_setting(
    "AUTH",
    "auto",
    choice("auto", "key", "open"),
    "who needs the API key: auto: everyone but programs of this host; key: everyone; open: nobody",
)
_setting("API_KEY_FILE", "{STATE_DIR}/api-key", folder(), "file of the API key, one a line; the first start makes the one named here")
_setting(
    "TRUSTED_PROXY",
    "",
    optional(matching(r"[0-9a-fA-F.:/]+(,[0-9a-fA-F.:/]+)*", "addresses or networks, separated by commas")),
    "proxies whose X-Forwarded-For is believed",
)

_groups.append("build")
_setting("ENGINE_REPO", "", optional(_REPOSITORY), "build the engine of another Git repository; empty: this one")
_setting("ENGINE_COMMIT", "", optional(_COMMIT), "commit of ENGINE_REPO to build; empty: the pinned tree")
_setting(
    "BASE_IMAGE",
    (
        "nvcr.io/nvidia/pytorch@sha256:2140e699b3beaf7f96a0081fd9c9406bc3832b435cdb60dfa2d261f7d2f34a1c",
        "python@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b",
    ),
    _PINNED_IMAGE,
    "image the engine's image is built on; brings Python with pip and, for GPUs, PyTorch (RUNTIME=docker)",
)
_setting(
    "TORCH",
    ("base", "lock"),
    choice("base", "lock"),
    "base: PyTorch of BASE_IMAGE (RUNTIME=process with GPUS: of the Python that runs this), if it is 2.11 or later; lock: of requirements/",
)
_setting("IMAGE", "glm-5.3-flash-lockstep", _IMAGE, "name of the engine's images (RUNTIME=docker)")

_groups.append("this program")
_setting("DRY_RUN", "0", FLAG, "1 prints what start would do and does nothing")
_setting("NO_COLOR", "", matching(r"[\x20-\x7e]*", "any text"), "set to anything: no colours")
_setting("NO_ANIM", "", matching(r"[\x20-\x7e]*", "any text"), "set to anything: no moving lines")

GROUPS = tuple(_groups)
SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _registry}
