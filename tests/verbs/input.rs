//! Input that is wrong: device matrices, libraries, words of other ranks.
