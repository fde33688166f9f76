//! Overrides of a fabric file's settings while the fabric runs.

/// An override of a yes/no setting of the fabric file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Override {
    /// No override.
    AsInFile = 0,
    /// Down, or absent.
    Off = 1,
    /// Up, or present.
    On = 2,
}

impl Override {
    /// Decodes a word of shared memory. Unknown values mean no override.
    #[must_use]
    pub const fn from_word(word: u32) -> Override {
        match word {
            1 => Override::Off,
            2 => Override::On,
            _ => Override::AsInFile,
        }
    }

    /// Returns the effective setting, given the one in the file.
    #[must_use]
    pub const fn apply(self, in_file: bool) -> bool {
        match self {
            Override::AsInFile => in_file,
            Override::Off => false,
            Override::On => true,
        }
    }
}

/// A change of a port's IPv4-mapped address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidChange {
    /// New index in the GID table; `None` leaves it as in the file.
    pub index: Option<u8>,
    /// New IPv4 address; `None` leaves it as in the file.
    pub ipv4: Option<std::net::Ipv4Addr>,
}
