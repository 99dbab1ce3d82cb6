"""A tokenizer's files from the Hugging Face hub, by name: JSON files and nothing else; no code is run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gpt1_ds.common import deadline
from gpt1_ds.common.errors import DataError, WorldError, one_line

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")


def download(name: str) -> Path:
    """The folder in the cache (HF_HOME) with the files of the repository `name`.

    Raises DataError for one that is missing, gated or has no tokenizer.json, WorldError where the hub is silent.
    """
    from huggingface_hub import errors, hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    folder = None
    for file in FILES:
        try:
            found = deadline.within(deadline.ANSWER_SECONDS, partial(hf_hub_download, name, file))
            folder = Path(found).parent
        except errors.GatedRepoError:
            raise DataError(f"--hf {name}: is gated; ask for access on its page, and set HF_TOKEN") from None
        except (errors.RepositoryNotFoundError, errors.HFValidationError):
            raise DataError(
                f"--hf {name}: neither a folder nor a repository on the hub; look at the name, or set HF_TOKEN to a "
                "token that may read it"
            ) from None
        except errors.LocalEntryNotFoundError as error:
            from huggingface_hub.constants import HF_HUB_OFFLINE

            if file != FILES[0]:
                continue
            if HF_HUB_OFFLINE:
                raise DataError(f"--hf {name}: HF_HUB_OFFLINE is set, and it is not in the cache; unset it") from None
            raise WorldError(f"--hf {name}: the hub does not answer ({one_line(error)}); run again later") from None
        except errors.EntryNotFoundError:
            if file == FILES[0]:
                raise DataError(f"--hf {name}: has no {file}; download its files and name their folder") from None
        except OSError as error:
            raise WorldError(f"--hf {name}: the hub does not answer ({one_line(error)}); run again later") from None
    assert folder is not None, "the first file is there"
    return folder
