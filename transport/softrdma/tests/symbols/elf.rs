//! The symbols that an ELF file defines and imports, with names and versions. 64 bits, little-endian.

use std::{collections::BTreeSet, fs, path::Path};

/// Section types.
const DYNSYM: u32 = 11;
const VERDEF: u32 = 0x6fff_fffd;
const VERNEED: u32 = 0x6fff_fffe;
const VERSYM: u32 = 0x6fff_ffff;

/// A symbol's name and version; the version is empty if the symbol has none.
pub(crate) type Versioned = (String, String);

/// The dynamic symbols of a file.
#[derive(Debug, Default)]
pub(crate) struct Elf {
    pub(crate) defined: BTreeSet<Versioned>,
    /// Imported symbols, with the file that must define them.
    pub(crate) wanted: BTreeSet<(String, Versioned)>,
}

/// A version that symbols refer to by number.
struct Version {
    number: u16,
    name: String,
    /// The file that must define the version; `None` for a version of this file.
    from: Option<String>,
}

struct Bytes(Vec<u8>);

struct Section {
    kind: u32,
    link: usize,
    start: usize,
    len: usize,
}

impl Bytes {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("N bytes")
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> usize {
        usize::try_from(u64::from_le_bytes(self.array(at))).expect("an offset")
    }

    fn text(&self, at: usize) -> String {
        let end = self.0[at..].iter().position(|&byte| byte == 0).expect("its end");
        String::from_utf8_lossy(&self.0[at..at + end]).into_owned()
    }

    fn sections(&self) -> Vec<Section> {
        let (start, size, count) = (self.u64(0x28), self.u16(0x3a), self.u16(0x3c));
        let headers = (0..count).map(|index| start + usize::from(index) * usize::from(size));
        let section = |at| Section {
            kind: self.u32(at + 4),
            start: self.u64(at + 0x18),
            len: self.u64(at + 0x20),
            link: self.u32(at + 0x28) as usize,
        };
        headers.map(section).collect()
    }

    /// Reads the section of version definitions: a chain of entries with their names.
    fn defined_versions(&self, section: &Section, texts: usize, versions: &mut Vec<Version>) {
        let mut at = section.start;
        loop {
            let name = self.text(texts + self.u32(at + self.u32(at + 12) as usize) as usize);
            versions.push(Version { number: self.u16(at + 4), name, from: None });
            match self.u32(at + 16) {
                0 => return,
                next => at += next as usize,
            }
        }
    }

    /// Reads the section of version needs: a chain of files, each with a chain of versions.
    fn wanted_versions(&self, section: &Section, texts: usize, versions: &mut Vec<Version>) {
        let mut at = section.start;
        loop {
            let from = self.text(texts + self.u32(at + 4) as usize);
            let mut entry = at + self.u32(at + 8) as usize;
            for _ in 0..self.u16(at + 2) {
                let name = self.text(texts + self.u32(entry + 8) as usize);
                versions.push(Version { number: self.u16(entry + 6), name, from: Some(from.clone()) });
                entry += self.u32(entry + 12) as usize;
            }
            match self.u32(at + 12) {
                0 => return,
                next => at += next as usize,
            }
        }
    }
}

impl Elf {
    pub(crate) fn read(path: &Path) -> Elf {
        let bytes = Bytes(fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        assert_eq!(bytes.0[..6], *b"\x7fELF\x02\x01", "{}", path.display());
        let sections = bytes.sections();
        let find = |kind| sections.iter().find(|section| section.kind == kind);
        let symbols = find(DYNSYM).expect("dynamic symbols");
        let texts = sections[symbols.link].start;
        let mut versions = Vec::new();
        if let Some(section) = find(VERDEF) {
            bytes.defined_versions(section, texts, &mut versions);
        }
        if let Some(section) = find(VERNEED) {
            bytes.wanted_versions(section, texts, &mut versions);
        }
        let mut elf = Elf::default();
        for index in 1..symbols.len / 24 {
            let at = symbols.start + index * 24;
            let name = bytes.text(texts + bytes.u32(at) as usize);
            // The highest bit marks a version that is not the default.
            let number = find(VERSYM).map_or(1, |section| bytes.u16(section.start + index * 2) & 0x7fff);
            let version = versions.iter().find(|version| version.number == number && number > 1);
            let versioned = (name, version.map_or(String::new(), |version| version.name.clone()));
            let is_defined = bytes.u16(at + 6) != 0;
            match version.and_then(|version| version.from.clone()) {
                Some(from) if !is_defined => _ = elf.wanted.insert((from, versioned)),
                _ if is_defined => _ = elf.defined.insert(versioned),
                _ => {}
            }
        }
        elf
    }
}
