"""A controller board that speaks DCMI's power limit (DCMI 1.5, section 6.6): ipmi_sim does not.

`python dcmi_board.py PORT STATE`: the file STATE holds, as JSON, the limit, whether it is active,
how orders fare (`deaf`, or the completion code of a refusal), and whether the chassis has power.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

from pyghmi.ipmi.bmc import Bmc

DCMI = 0xDC
NO_LIMIT = 0x80


class Board(Bmc):
    def __init__(self, port: int, state: Path) -> None:
        super().__init__({"monitor": "secret"}, port, address="::ffff:127.0.0.1")
        self.state = state

    def load(self) -> dict[str, Any]:
        return dict(json.loads(self.state.read_text()))

    def keep(self, **changes: Any) -> None:
        fresh = self.state.with_name("fresh")
        fresh.write_text(json.dumps({**self.load(), **changes}))
        fresh.replace(self.state)

    def handle_raw_request(self, request: dict[str, Any], session: Any) -> None:
        if request["netfn"] != 0x2C or request["data"][0] != DCMI:
            super().handle_raw_request(request, session)
            return
        code, answer = self.dcmi(request["command"], bytearray(request["data"][1:]))
        session.send_ipmi_response(code=code, data=[DCMI, *answer])

    def dcmi(self, command: int, data: bytearray) -> tuple[int, bytes]:
        state = self.load()
        match command:
            case 0x03:
                fields = 0, state["action"], state["limit_w"], 1000, 0, 1
                code = 0 if state["active"] else NO_LIMIT
                return code, struct.pack("<HBHIHH", *fields)
            case 0x04 | 0x05 if state["refuses"]:
                return state["refuses"], b""
            case 0x04 | 0x05 if state["deaf"]:
                return 0, b""
            case 0x04:
                action, limit_w = struct.unpack_from("<BH", data, 3)
                self.keep(action=action, limit_w=limit_w)
                return 0, b""
            case 0x05:
                self.keep(active=data[0] == 1)
                return 0, b""
        return 0xC1, b""

    def get_power_state(self) -> str:
        return "on" if self.load()["on"] else "off"

    def power_on(self) -> None:
        self.keep(on=True)

    def power_off(self) -> None:
        self.keep(on=False)


if __name__ == "__main__":
    Board(int(sys.argv[1]), Path(sys.argv[2])).listen()
