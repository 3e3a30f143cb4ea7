#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::rc_engine::run(bytes));
