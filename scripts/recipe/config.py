"""Settings as they hold for this run, each with its origin. Environment beats `scripts/local.sh`, which beats `.env`, which beats defaults.

An empty value counts as not given, wherever it stands, so an exported empty variable never hides what a file says.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from recipe import dotenv
from recipe.adapters import bash, kernel
from recipe.kinds import Value
from recipe.settings import DEFAULT_PROFILE, PROFILES, SETTINGS, WITHOUT_EFFECT

ENVIRONMENT, LOCAL_SH, ENV_FILE = "environment", "scripts/local.sh", ".env"
LOOK_ALIKE, VERY_ALIKE = 0.75, 0.85
HIDDEN, LONGEST = "(set, not shown)", 200
PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Given:
    """A text from one source. `origin` names the source, with the line where it has lines."""

    text: str
    origin: str


@dataclass(frozen=True)
class Chosen:
    value: Value
    text: str
    origin: str
    is_default: bool


@dataclass(frozen=True)
class Notice:
    """A remark about a source. Harmless ones are only told by `config`. Never holds a value."""

    text: str
    code: str = "W_SETTING"
    is_harmless: bool = False


# Every name that is looked for, aliases and names without effect too.
NAMES = frozenset([*SETTINGS, *WITHOUT_EFFECT, *(alias for setting in SETTINGS.values() for alias in setting.aliases)])


@dataclass(frozen=True)
class Config:
    root: Path
    chosen: Mapping[str, Chosen]
    notices: tuple[Notice, ...]

    def text(self, name: str) -> str:
        return self.chosen[name].text

    def number(self, name: str) -> int:
        value = self.chosen[name].value
        if not isinstance(value, int):
            raise TypeError(f"{name} is not a number")
        return value

    def folder(self, name: str) -> Path:
        return Path(str(self.chosen[name].value))

    def is_on(self, name: str) -> bool:
        return self.chosen[name].text == "1"

    def words(self, name: str) -> tuple[str, ...]:
        value = self.chosen[name].value
        return value if isinstance(value, tuple) else ()

    def gpus(self) -> tuple[str, ...]:
        return self.words("GPUS")

    def shown(self, name: str) -> str:
        """The value for people: a secret is only said to be set."""
        text = self.chosen[name].text
        return HIDDEN if SETTINGS[name].is_secret and text else text

    def public(self) -> dict[str, str]:
        """Every setting that is no secret, name to text."""
        return {name: chosen.text for name, chosen in self.chosen.items() if not SETTINGS[name].is_secret}


def load(root: Path, environment: Mapping[str, str]) -> Config:
    """Read all sources. Raises Failure E_CONFIG with every value that is not allowed."""
    notices: list[Notice] = []
    sources = [_from_environment(environment), _from_local_sh(root, environment, notices), _from_env_file(root, notices)]
    given: dict[str, Given] = {}
    for name, setting in SETTINGS.items():
        # A source beats the next one whatever name it uses; within one the setting's own name counts.
        in_order = [source[key] for source in sources for key in (name, *setting.aliases) if key in source]
        filled = [one for one in in_order if one.text]
        if filled:
            given[name] = filled[0]
            if not in_order[0].text:
                notices.append(Notice(f"{name} is empty in {in_order[0].origin}: passed over, {filled[0].origin} counts"))
            for other in filled[1:]:
                is_alias = other.text != filled[0].text and setting.aliases
                notices.append(Notice(f"{name} from {filled[0].origin} counts, not {other.origin}", is_harmless=not is_alias))
    for name, why in WITHOUT_EFFECT.items():
        notices += [Notice(f"{name} from {source[name].origin}: {why}", code="W_NO_EFFECT") for source in sources if name in source]
    return Config(root, _choose(given, root, environment), tuple(notices))


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    return {name: Given(environment[name], _origin(ENVIRONMENT, name)) for name in NAMES if name in environment}


def _origin(source: str, name: str) -> str:
    return source if name in SETTINGS or name in WITHOUT_EFFECT else f"{source} ({name})"


def _from_local_sh(root: Path, environment: Mapping[str, str], notices: list[Notice]) -> dict[str, Given]:
    file = root / LOCAL_SH
    if not (file.exists() or file.is_symlink()):
        return {}
    try:
        values = bash.assignments(file, root / "scripts" / "config.sh", environment)
    except ValueError as error:
        raise Failure("E_CONFIG", found=f"{LOCAL_SH} could not be read: {error}", needed="a Bash file without an error") from error
    for name in values:
        if name not in NAMES and name.isupper():
            notices.append(Notice(f"{LOCAL_SH}: {_unknown(name)}", is_harmless=_look_alike(name) is None))
    return {name: Given(text, _origin(LOCAL_SH, name)) for name, text in values.items() if name in NAMES}


def _from_env_file(root: Path, notices: list[Notice]) -> dict[str, Given]:
    file = root / ENV_FILE
    try:
        parsed = dotenv.parse(file.read_bytes())
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not file.is_symlink():
            return {}
        raise Failure("E_CONFIG", found=f"{ENV_FILE} cannot be read: {error.strerror}", needed="a readable file, or none") from error
    for remark in parsed.remarks:
        is_harmless = remark.is_harmless and not (remark.key in SETTINGS and SETTINGS[remark.key].is_secret)
        notices.append(Notice(f"{ENV_FILE} line {remark.line}: " + f"{remark.key} {remark.text}".lstrip(), is_harmless=is_harmless))
    for name, entry in parsed.entries.items():
        if name not in NAMES:
            notices.append(Notice(f"{ENV_FILE} line {entry.line}: {_unknown(name)}"))
    return {
        name: Given(entry.value, _origin(f"{ENV_FILE} line {entry.line}", name)) for name, entry in parsed.entries.items() if name in NAMES
    }


def _look_alike(name: str) -> str | None:
    close = difflib.get_close_matches(name.upper(), SETTINGS, n=1, cutoff=LOOK_ALIKE)
    return close[0] if close else None


def look_alikes(environment: Mapping[str, str]) -> list[str]:
    """What is said of variables that may have been meant as a setting; most of an environment is none of this program's."""
    others = [name for name in environment if name.isupper() and name not in NAMES]
    return [f"{ENVIRONMENT}: {_unknown(name)}" for name in others if difflib.get_close_matches(name, SETTINGS, n=1, cutoff=VERY_ALIKE)]


def _unknown(name: str) -> str:
    close = _look_alike(name)
    return f"{name} is no setting" + (f"; {close} is" if close else "") + ": ignored"


def _choose(given: Mapping[str, Given], root: Path, environment: Mapping[str, str]) -> dict[str, Chosen]:
    wrong: list[str] = []
    profile = given["PROFILE"].text if "PROFILE" in given else DEFAULT_PROFILE
    if profile not in PROFILES:
        _refuse([_complaint("PROFILE", given["PROFILE"])])
    home = kernel.home(environment)
    cache = environment.get("XDG_CACHE_HOME", "")
    places = {"root": str(root), "home": home, "cache": cache if cache.startswith("/") else f"{home}/.cache"}
    chosen: dict[str, Chosen] = {}
    for name, setting in SETTINGS.items():
        template = setting.default(profile)
        if name not in given and not places.keys() >= set(PLACE.findall(template)):
            # Below a place that is refused.
            continue
        one = given.get(name) or Given(PLACE.sub(lambda found: places[found[1]], template), f"default ({profile})")
        try:
            value = setting.kind.read(one.text) if one.text or name in given else ""
        except ValueError:
            wrong.append(_complaint(name, one))
            continue
        text = str(value) if isinstance(value, str) else one.text
        chosen[name] = Chosen(value, text, one.origin, is_default=name not in given)
        places[name] = text
    if wrong:
        _refuse(wrong)
    return chosen


def _complaint(name: str, one: Given) -> str:
    # A URL may hold a password where none is allowed; a text may be a file's whole content.
    shown = HIDDEN if SETTINGS[name].is_secret else repr(re.sub("//[^/]*@", "//...@", one.text)[:LONGEST])
    return f"{name}={shown} from {one.origin}; needed {SETTINGS[name].kind.allowed}"


def _refuse(wrong: list[str]) -> None:
    needed = "every setting within what docs/settings.md allows" if len(wrong) > 1 else wrong[0].split("; needed ", 1)[1]
    found = "; ".join(wrong) if len(wrong) > 1 else wrong[0].split("; needed ", 1)[0]
    raise Failure("E_CONFIG", found=found, needed=needed)
