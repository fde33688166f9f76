//! Sizes that people type.

use crate::UnknownName;

/// Reads a size in bytes: `4`, `64K`, `1.5M`, `2G`; suffixes are powers of 1024, with or without `B` or `iB`.
///
/// # Errors
/// A message that names the defect: an unknown suffix, or a number that is missing or out of range.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        other => return Err(UnknownName::new("size suffix", other, ["K", "M", "G", "T"]).to_string()),
    };
    let unit = (1u64 << shift) as f64;
    let value: f64 =
        digits.parse().map_err(|_| format!("`{text}` is not a size; write e.g. 4, 64K, 1.5M or 2G"))?;
    let bytes = value * unit;
    if !(0.0..9e18).contains(&bytes) {
        return Err(format!("`{text}` is not a possible size"));
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        for (text, bytes) in [("4", 4), ("64K", 65536), ("1.5m", 3 << 19), ("2GiB", 2 << 30), ("0", 0)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "4Q", "-1", "1e99", "4 K x"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
