"""Where does a target model come from? Embedded, made up, a folder, or the model hub."""

from eagle3ops.targets.info import (
    FileStamp,
    TargetInfo,
    changed_since,
    check_folder,
    read_target_info,
    write_target_info,
)
from eagle3ops.targets.resolve import EMBEDDED, TINY, refuse_unknown, resolve

__all__ = [
    "EMBEDDED",
    "TINY",
    "FileStamp",
    "TargetInfo",
    "changed_since",
    "check_folder",
    "read_target_info",
    "refuse_unknown",
    "resolve",
    "write_target_info",
]
