//! What the models see where the code is wrong.

use super::*;

fn without(fence: At, model: impl FnOnce()) {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            LEFT_OUT.set(None);
        }
    }
    LEFT_OUT.set(Some(fence));
    let _leave = Leave;
    model();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_initiator_that_looks_before_the_queue_pair_is_said() {
    without(At::InUse, || one_takes_back(QUEUE_PAIR, Way::AsItShips));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_initiator_that_looks_before_the_region_is_said() {
    without(At::InUse, || one_takes_back(REGION, Way::AsItShips));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn who_looks_for_users_before_the_region_is_cleared() {
    without(At::TakenBack, || one_takes_back(REGION, Way::AsItShips));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn who_looks_for_users_before_the_queue_pair_is_cleared() {
    without(At::TakenBack, || one_takes_back(QUEUE_PAIR, Way::AsItShips));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn who_looks_at_the_list_before_the_region_is_cleared() {
    without(At::TakenBack, who_is_exported_to_meanwhile_is_waited_for_or_finds_nothing);
}

#[test]
#[should_panic(expected = "it is not what was sent")]
fn a_queue_pair_whose_program_writes_before_it_is_taken_back() {
    without(At::TakenBack, what_was_taken_back_does_not_count_as_pulled);
}

#[test]
#[should_panic(expected = "it is not what was sent")]
fn a_peer_that_looks_again_before_it_has_pulled() {
    without(At::Pulled, what_was_taken_back_does_not_count_as_pulled);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_initiator_that_says_which_queue_pair_it_uses_too_late() {
    one_takes_back(QUEUE_PAIR, Way::LooksThenSays);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_initiator_that_says_which_region_too_late() {
    one_takes_back(REGION, Way::LooksThenSays);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_initiator_that_lets_go_too_early() {
    one_takes_back(REGION, Way::LetsGoThenCopies);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_page_that_stays_when_it_was_taken_away() {
    one_times_out(1, true);
}
