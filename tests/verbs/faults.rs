//! Cables that lose and damage messages, and what breaks while ranks work.
