#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::cm_pair::run(bytes));
