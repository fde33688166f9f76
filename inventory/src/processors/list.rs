//! Lists of hardware threads, as Linux and hwloc write them.

/// Threads of a machine, at most. Larger numbers make a list malformed.
const MAX_CPUS: u32 = 1 << 16;

/// Parses a list of numbers as Linux writes it, `0-3,8`. Returns `None` for other text.
#[must_use]
pub fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Parses a set of numbers as hwloc writes it: words of 32 bits in hexadecimal, the highest one first,
/// `0x0000ff00,0x000000ff`. Returns `None` for other text, and for sets without end.
pub(super) fn parse_cpu_set(text: &str) -> Option<Vec<u32>> {
    let words: Vec<&str> = text.trim().split(',').collect();
    if words.len() > (MAX_CPUS / u32::BITS) as usize {
        return None;
    }
    let mut cpus = Vec::new();
    for (position, word) in (0..).zip(words.iter().rev()) {
        let word = match word.trim().strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            // A word without bits may be left out between others.
            None if word.trim().is_empty() && words.len() > 1 => 0,
            None => return None,
        };
        let bits = (0..u32::BITS).filter(|bit| word >> bit & 1 != 0);
        cpus.extend(bits.map(|bit| position * u32::BITS + bit));
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_linux_are_read() {
        assert_eq!(parse_cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cpu_list("\n"), Some(vec![]));
        for text in ["x", "3-1", "1-", "0-4294967295", "65536"] {
            assert_eq!(parse_cpu_list(text), None, "{text}");
        }
    }

    #[test]
    fn sets_of_hwloc_are_read() {
        assert_eq!(parse_cpu_set("0x00000005"), Some(vec![0, 2]));
        assert_eq!(parse_cpu_set("0x00000001,,0x80000000"), Some(vec![31, 64]));
        assert_eq!(parse_cpu_set("0x0"), Some(vec![]));
        for text in ["", "5", "0xf...f", "0x100000000"] {
            assert_eq!(parse_cpu_set(text), None, "{text}");
        }
    }
}
