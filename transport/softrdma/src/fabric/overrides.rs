//! Settings that replace those of a fabric file while the fabric runs.

/// A word that overrules the fabric file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Override {
    /// As in the file.
    AsInFile = 0,
    /// Down, or not there.
    Off = 1,
    /// Up, or there.
    On = 2,
}

impl Override {
    /// A number that nobody writes counts as none.
    #[must_use]
    pub const fn from_word(word: u32) -> Override {
        match word {
            1 => Override::Off,
            2 => Override::On,
            _ => Override::AsInFile,
        }
    }

    /// What holds when the file says `in_file`.
    #[must_use]
    pub const fn apply(self, in_file: bool) -> bool {
        match self {
            Override::AsInFile => in_file,
            Override::Off => false,
            Override::On => true,
        }
    }
}

/// Where an address was moved to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidChange {
    /// Its place in the table.
    pub index: Option<u8>,
    /// The IPv4 address that it maps.
    pub ipv4: Option<std::net::Ipv4Addr>,
}
