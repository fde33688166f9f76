//! The port that is used, and port speeds.

use verbs_sys::PortAttr;

/// Number of the only port used. Thunderbolt devices have one port, and RoCE adapters list each port as a
/// device of its own.
pub(super) const PORT: u8 = 1;

/// Returns the signaling rate in Gb/s in each direction; the data rate is lower. `None` for unknown codes.
#[must_use]
pub fn gigabits(port: &PortAttr) -> Option<f64> {
    let lanes = match port.active_width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    let each = match port.active_speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => return None,
    };
    Some(lanes * each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_multiplied_out() {
        let mut port = PortAttr::zeroed();
        assert_eq!(gigabits(&port), None);
        // As Apple's device reports it: 8X, 10.0 Gb/s.
        (port.active_width, port.active_speed) = (4, 4);
        assert_eq!(gigabits(&port), Some(80.0));
        (port.active_width, port.active_speed) = (2, 64);
        assert_eq!(gigabits(&port), Some(200.0));
        port.active_speed = 3;
        assert_eq!(gigabits(&port), None);
    }
}
