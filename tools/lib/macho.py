"""Mach-O files (programs and libraries of macOS) read on any system: load commands, symbols, signature.

Nothing is run. `check-jaccl`, `wheels` and `archive` check with it what the linker has written.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

# Load commands and fields of Mach-O (mach-o/loader.h, mach-o/nlist.h).
MAGIC_64, CPU_ARM64, FILE_DYLIB = 0xFEEDFACF, 0x0100000C, 6
SYMTAB, LOAD_DYLIB, ID_DYLIB, LOAD_WEAK_DYLIB = 0x2, 0xC, 0xD, 0x80000018
CODE_SIGNATURE, BUILD_VERSION = 0x1D, 0x32
N_STAB, N_TYPE, N_EXT, N_SECT = 0xE0, 0x0E, 0x01, 0x0E
MACOS = 1
CODE_DIRECTORY = 0xFADE0C02


class MachO:
    """A program or a library for Apple silicon: its load commands and its symbols."""

    def __init__(self, path: Path) -> None:
        self.data = data = path.read_bytes()
        magic, cpu, _, kind, commands = struct.unpack_from("<IIIII", data)
        self.is_arm64 = (magic, cpu) == (MAGIC_64, CPU_ARM64)
        self.is_arm64_library = self.is_arm64 and kind == FILE_DYLIB
        self.name, self.libraries, self.least_system, self.signature = "", [], (0, 0), None
        self.exports: set[str] = set()
        self.imports: dict[str, str] = {}
        at, symbols = 32, None
        for _ in range(commands if self.is_arm64 else 0):
            command, size = struct.unpack_from("<II", data, at)
            if command in (ID_DYLIB, LOAD_DYLIB, LOAD_WEAK_DYLIB):
                text = self._text(at + struct.unpack_from("<I", data, at + 8)[0])
                if command == ID_DYLIB:
                    self.name = text
                else:
                    self.libraries.append(text)
            elif command == BUILD_VERSION:
                platform, least = struct.unpack_from("<II", data, at + 8)
                self.least_system = (least >> 16, least >> 8 & 0xFF) if platform == MACOS else (0, 0)
            elif command == CODE_SIGNATURE:
                self.signature = struct.unpack_from("<II", data, at + 8)
            elif command == SYMTAB:
                symbols = struct.unpack_from("<IIII", data, at + 8)
            at += size
        for index in range(symbols[1] if symbols else 0):
            name, kind, _, description, _ = struct.unpack_from("<IBBHQ", data, symbols[0] + 16 * index)
            if kind & N_STAB or not kind & N_EXT or kind & 0x10:
                continue
            text = self._text(symbols[2] + name)
            if kind & N_TYPE == N_SECT:
                self.exports.add(text)
            elif kind & N_TYPE == 0:
                ordinal = description >> 8
                self.imports[text] = self.libraries[ordinal - 1] if 0 < ordinal <= len(self.libraries) else ""

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(0, at)].decode()

    def taken_from(self, library: str) -> set[str]:
        """Returns the names that this library takes from another one."""
        return {name for name, found in self.imports.items() if found == library}

    def signature_holds(self) -> bool:
        """Whether the file has a signature whose hashes are those of its pages."""
        if not self.signature:
            return False
        start = self.signature[0]
        count = struct.unpack_from(">I", self.data, start + 8)[0]
        for blob in range(count):
            at = start + struct.unpack_from(">I", self.data, start + 16 + 8 * blob)[0]
            if struct.unpack_from(">I", self.data, at)[0] != CODE_DIRECTORY:
                continue
            fields = (struct.unpack_from(">I", self.data, at + field)[0] for field in (16, 28, 32))
            hashes, slots, limit = fields
            size, kind, page = self.data[at + 36], self.data[at + 37], 1 << self.data[at + 39]
            if (size, kind) != (32, 2):
                return False
            pages = [self.data[begin : min(begin + page, limit)] for begin in range(0, limit, page)]
            places = [at + hashes + 32 * slot for slot in range(slots)]
            hashed = [self.data[place : place + 32] for place in places]
            return [hashlib.sha256(part).digest() for part in pages] == hashed
        return False
