#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::frames_flows::run(bytes));
