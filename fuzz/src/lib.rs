//! Entry points of fuzz targets whose parsers are public: each takes any bytes and asserts the invariants
//! that hold for all of them. The others are in the packages that they test, behind the feature `fuzzing`.

pub mod fabric;
pub mod files;
