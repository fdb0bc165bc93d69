"""What is a process, in a word?"""


def role_of(name: str, command: str) -> str:
    """What a process is, in a word: of an interpreter what it runs, as `python` would say nothing.

    Args:
        name: the kernel's name of the process.
        command: its command line.
    """
    words = command.split()
    if not name.startswith("python") or len(words) < 2:
        return name
    for at, word in enumerate(words[1:], 1):
        if word == "-m" and at + 1 < len(words):
            module = words[at + 1]
            # python -m eagle3ops.runs.stage RUN STAGE KEY
            return words[at + 3] if module == "eagle3ops.runs.stage" and at + 3 < len(words) else module
        if word in ("-c", "-"):
            return name
        if not word.startswith("-"):
            return word.rpartition("/")[2] or name
    return name
