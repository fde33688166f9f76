//! The TCP transport against those who do not belong: strangers at its door, and peers that have gone mad.

#[cfg(target_os = "linux")]
mod cut;
mod intruders;
mod net;
mod paths;
mod races;
