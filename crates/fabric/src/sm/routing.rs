//! Forwarding tables: up/down routing, and among the ways that it allows the shortest ones, spread
//! over ports by the number of LIDs that already leave there.
//!
//! All switches have an order. A way goes up in it, then down, and never up again, so the ways of
//! data have no circle of dependencies. The first order that is tried suits trees: by the distance
//! from the next switch with hosts. Where that leaves two switches with hosts without a way, the
//! order is that of the distance from one switch. What up/down routing cannot join, which are
//! switches without hosts, takes a shortest way.

use std::cmp::Reverse;
use std::collections::VecDeque;

const NONE: u16 = u16::MAX;
/// The entry of a table that leads nowhere.
const NO_PORT: u8 = 255;

/// The switches of a subnet, by their place in these lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    /// Their numbers in the topology.
    pub(super) nodes: Vec<u32>,
    /// Their places by those numbers; `u32::MAX` for other nodes.
    pub(super) places: Vec<u32>,
    pub(super) guids: Vec<u64>,
    /// Each other switch, and the port to it.
    pub(super) links: Vec<Vec<(u32, u8)>>,
    /// LIDs at each switch, and the port to them: 0 for its own.
    pub(super) ends: Vec<Vec<(u16, u8)>>,
}

impl Graph {
    fn has_hosts(&self, switch: usize) -> bool {
        self.ends[switch].iter().any(|(_, port)| *port != 0)
    }

    /// Links between the nearest of these switches and each other one.
    fn distances(&self, from: impl IntoIterator<Item = usize>) -> Vec<u16> {
        let mut hops = vec![NONE; self.links.len()];
        let mut queue: VecDeque<usize> = from.into_iter().collect();
        queue.iter().for_each(|switch| hops[*switch] = 0);
        while let Some(switch) = queue.pop_front() {
            for (next, _) in &self.links[switch] {
                if hops[*next as usize] == NONE {
                    hops[*next as usize] = hops[switch] + 1;
                    queue.push_back(*next as usize);
                }
            }
        }
        hops
    }

    /// For each switch the port towards `root`, over shortest ways.
    pub(super) fn spanning_tree(&self, root: usize) -> Vec<Option<(usize, u8)>> {
        let hops = self.distances([root]);
        let towards = |switch: usize| {
            let mut links = self.links[switch].iter();
            let (next, port) =
                links.find(|(next, _)| hops[switch] != NONE && hops[*next as usize] < hops[switch])?;
            Some((*next as usize, *port))
        };
        (0..self.links.len()).map(towards).collect()
    }
}

/// The tables of a graph, a destination at a time.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) graph: Graph,
    /// A table for each switch, as long as the highest LID needs.
    pub(super) tables: Vec<Vec<u8>>,
    /// The place of each switch in the order; the highest is the top.
    height: Vec<u32>,
    /// The switches from the top down.
    from_top: Vec<usize>,
    is_tree: bool,
    /// LIDs that leave by each port.
    loads: Vec<Vec<u32>>,
    next: usize,
}

impl Router {
    pub(super) fn new(graph: Graph) -> Self {
        let count = graph.links.len();
        let leaves = graph.distances((0..count).filter(|switch| graph.has_hosts(*switch)));
        let mut router = Self {
            tables: Vec::new(),
            height: Vec::new(),
            from_top: Vec::new(),
            is_tree: true,
            loads: Vec::new(),
            next: 0,
            graph,
        };
        router.begin(&leaves.iter().map(|hops| hops.wrapping_add(1)).collect::<Vec<_>>());
        router
    }

    /// Begins with an order: a switch of a higher rank is above one of a lower rank.
    fn begin(&mut self, ranks: &[u16]) {
        let count = self.graph.links.len();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|switch| (Reverse(ranks[*switch]), self.graph.guids[*switch]));
        self.height = vec![0; count];
        order.iter().rev().enumerate().for_each(|(height, switch)| self.height[*switch] = height as u32);
        self.from_top = order;
        let top = self.graph.ends.iter().flatten().map(|(lid, _)| *lid).max().unwrap_or(0);
        // Whole blocks.
        let len = (usize::from(top) / 64 + 1) * 64;
        self.tables = vec![vec![NO_PORT; len]; count];
        self.loads = vec![vec![0; 256]; count];
        self.next = 0;
    }

    /// Routes to one more switch; false where there is none left.
    pub(super) fn step(&mut self) -> bool {
        if self.next >= self.graph.links.len() {
            return false;
        }
        if !self.route_to(self.next) && self.is_tree {
            self.is_tree = false;
            let root = self.from_top[0];
            let below = self.graph.distances([root]);
            self.begin(&below.iter().map(|hops| NONE - hops).collect::<Vec<_>>());
            return true;
        }
        self.next += 1;
        true
    }

    /// Fills in the ways to what hangs at a switch; false where up/down routing does not join it
    /// with all others that have hosts.
    fn route_to(&mut self, to: usize) -> bool {
        let (down, up) = self.legal_distances(to);
        let hops = self.graph.distances([to]);
        let mut is_joined = true;
        let mut candidates = Vec::new();
        for switch in 0..self.graph.links.len() {
            if switch == to {
                self.graph.ends[to].iter().for_each(|(lid, port)| self.tables[to][usize::from(*lid)] = *port);
                continue;
            }
            candidates.clear();
            let links = self.graph.links[switch].iter();
            let height = &self.height;
            let is_next = |next: usize| {
                if down[switch] != NONE {
                    height[next] < height[switch] && down[next] == down[switch] - 1
                } else if up[switch] != NONE {
                    height[next] > height[switch] && down[next].min(up[next]) == up[switch] - 1
                } else {
                    hops[switch] != NONE && hops[next] == hops[switch] - 1
                }
            };
            candidates.extend(links.filter(|(next, _)| is_next(*next as usize)).map(|(_, port)| *port));
            // Each switch begins with another one, so that small loads spread, too.
            if !candidates.is_empty() {
                let first = switch % candidates.len();
                candidates.rotate_left(first);
            }
            if down[switch] == NONE && up[switch] == NONE && hops[switch] != NONE {
                is_joined &= !(self.graph.has_hosts(to) && self.graph.has_hosts(switch));
            }
            let (table, loads) = (&mut self.tables[switch], &mut self.loads[switch]);
            for (lid, port) in &self.graph.ends[to] {
                let Some(out) = candidates.iter().copied().min_by_key(|out| loads[usize::from(*out)]) else {
                    break;
                };
                table[usize::from(*lid)] = out;
                if *port != 0 {
                    loads[usize::from(out)] += 1;
                }
            }
        }
        is_joined
    }

    /// From each switch the length of a way that only goes down; and of one that first goes up, for
    /// those without the first. A packet that has come down must go on down: the table of a switch
    /// does not know where a packet came from.
    fn legal_distances(&self, to: usize) -> (Vec<u16>, Vec<u16>) {
        let count = self.graph.links.len();
        let (mut down, mut up) = (vec![NONE; count], vec![NONE; count]);
        down[to] = 0;
        let mut queue = VecDeque::from([to]);
        while let Some(switch) = queue.pop_front() {
            for (next, _) in &self.graph.links[switch] {
                let next = *next as usize;
                if self.height[next] > self.height[switch] && down[next] == NONE {
                    down[next] = down[switch] + 1;
                    queue.push_back(next);
                }
            }
        }
        for switch in self.from_top.iter().copied().filter(|switch| down[*switch] == NONE).collect::<Vec<_>>()
        {
            let links = self.graph.links[switch].iter().map(|(next, _)| *next as usize);
            let above = links.filter(|next| self.height[*next] > self.height[switch]);
            let best = above.map(|next| down[next].min(up[next])).min().unwrap_or(NONE);
            up[switch] = best.saturating_add(1);
        }
        (down, up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Switches with one host each, but for those that `bare` names; LID n + 1 is the switch's own,
    /// 1001 + n the host's.
    fn graph(count: usize, cables: &[(usize, usize)], bare: &[usize]) -> Graph {
        let mut graph = Graph { guids: (0..count as u64).collect(), ..Graph::default() };
        graph.links = vec![Vec::new(); count];
        graph.ends = (0..count).map(|n| vec![(n as u16 + 1, 0), (n as u16 + 1001, 1)]).collect();
        bare.iter().for_each(|n| graph.ends[*n].truncate(1));
        for (a, b) in cables {
            for (from, to) in [(*a, *b), (*b, *a)] {
                let port = graph.links[from].len() as u8 + 2;
                graph.links[from].push((to as u32, port));
            }
        }
        graph
    }

    fn routed(graph: Graph) -> Router {
        let mut router = Router::new(graph);
        while router.step() {}
        router
    }

    /// The switches on the way to a LID.
    fn way(router: &Router, from: usize, lid: u16) -> Vec<usize> {
        let mut way = vec![from];
        loop {
            let at = *way.last().unwrap();
            let out = router.tables[at][usize::from(lid)];
            let next = router.graph.links[at].iter().find(|(_, port)| *port == out);
            let Some((next, _)) = next else { return way };
            way.push(*next as usize);
            assert!(way.len() <= router.graph.links.len() + 1, "a circle: {way:?}");
        }
    }

    #[test]
    fn in_a_tree_ways_are_shortest_and_spread_over_the_spines() {
        let cables: Vec<_> = (0..4).flat_map(|leaf| [(leaf, 4), (leaf, 5)]).collect();
        let router = routed(graph(6, &cables, &[4, 5]));
        assert!(router.is_tree);
        let mut middles = vec![0; 6];
        for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).filter(|(a, b)| a != b) {
            let way = way(&router, from, 1001 + to as u16);
            assert_eq!((way.len(), way[2]), (3, to));
            middles[way[1]] += 1;
        }
        assert_eq!(middles, [0, 0, 0, 0, 6, 6]);
        assert_eq!(way(&router, 4, 6).len(), 3, "spines reach each other, for their management");
    }

    #[test]
    fn on_a_ring_no_way_goes_down_and_then_up() {
        let cables: Vec<_> = (0..6).map(|n| (n, (n + 1) % 6)).collect();
        let mut ring = graph(6, &cables, &[]);
        // Three switches with lower ones at both sides.
        ring.guids = vec![0, 3, 1, 4, 2, 5];
        let router = routed(ring);
        assert!(!router.is_tree);
        for (from, to) in (0..6).flat_map(|from| (0..6).map(move |to| (from, to))).filter(|(a, b)| a != b) {
            let way = way(&router, from, 1001 + to as u16);
            assert_eq!(way.last(), Some(&to));
            let is_up: Vec<_> =
                way.windows(2).map(|hop| router.height[hop[0]] < router.height[hop[1]]).collect();
            assert!(is_up.is_sorted_by(|first, then| first >= then), "{way:?}: {is_up:?}");
        }
    }

    #[test]
    fn a_part_that_is_cut_off_has_no_entry() {
        let router = routed(graph(3, &[(0, 1)], &[]));
        assert_eq!(router.tables[0][1003], NO_PORT);
        assert_eq!(way(&router, 0, 1002), [0, 1]);
    }
}
