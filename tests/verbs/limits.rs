//! Devices with few regions and few queue pairs.
