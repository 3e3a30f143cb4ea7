#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::tag_matching::run(bytes));
