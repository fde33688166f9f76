//! The port that is used, and its speed.

use verbs_sys::PortAttr;

/// The port that we use. Thunderbolt devices have no other, and RoCE adapters list each port as a device of its own.
pub(super) const PORT: u8 = 1;

/// Gigabits per second in each direction, as signalled: what arrives of it is less. `None` for codes without meaning.
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
        // As Apple's device has it: 8X, 10.0 Gb/s.
        (port.active_width, port.active_speed) = (4, 4);
        assert_eq!(gigabits(&port), Some(80.0));
        (port.active_width, port.active_speed) = (2, 64);
        assert_eq!(gigabits(&port), Some(200.0));
        port.active_speed = 3;
        assert_eq!(gigabits(&port), None);
    }
}
