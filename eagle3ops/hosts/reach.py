"""A name, and the way there: which transport reaches which host?"""

from eagle3ops.hosts.prompts import Prompts
from eagle3ops.hosts.transport import Transport

LOCAL = "local"


def transport_for(name: str, prompts: Prompts) -> Transport:
    """How to reach `local`, a host of hosts.yaml, or `ssh://user@host:port`.

    Raises:
        RequestError: an unknown host (lists the known ones), or not an address.
        SpecError: hosts.yaml is wrong.
    """
    if name == LOCAL:
        from eagle3ops.hosts.local import LocalTransport

        return LocalTransport()
    # The file of hosts is read with pydantic and yaml, which this machine does without.
    from eagle3ops.hosts.registry import find_host
    from eagle3ops.hosts.ssh.transport import SshTransport

    return SshTransport(find_host(name), prompts)
