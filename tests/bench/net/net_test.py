#!/usr/bin/env python3
"""The pure parts of net_bench.py and convergence_bench.py: no root, no torch, no network."""

import contextlib
import io
import math
import socket
import sys
import threading
import unittest

import combine
import convergence_bench
import net_bench
import network
import plain_tcp
import traffic

LINK = """[{"ifindex":2,"ifname":"eth0","stats64":{"rx":{"bytes":1000,"packets":10,"errors":0},
"tx":{"bytes":2000,"packets":20,"errors":0}}}]"""


def refusal(parse, *words):
    """What a command line's parser prints when it refuses these words; "" if it does not."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            parse(list(words))
        except SystemExit:
            return said.getvalue()
    return ""


class TheoryTest(unittest.TestCase):
    def test_the_model_is_the_papers(self):
        self.assertEqual(traffic.payload_bytes(traffic.resnet18(), "no"), 4 * 11_173_962)

    def test_the_paper_counted_the_same_bytes(self):
        # Its table: 1023 MB per epoch of 24 steps with SGD; 4, 8 and 14 MB with PowerSGD.
        whole = traffic.payload_bytes(traffic.resnet18(), "no")
        for rank, ratio in ((1, 243), (2, 136), (4, 72)):
            low = traffic.payload_bytes(traffic.resnet18(), f"power_sgd:{rank}")
            self.assertEqual(int(whole / low + 0.5), ratio)

    def test_small_matrices_and_vectors_are_not_compressed(self):
        self.assertEqual(traffic.payload_bytes([(100, 100)], "power_sgd:1"), 4 * 200)
        self.assertEqual(traffic.payload_bytes([(4, 4)], "power_sgd:1"), 4 * 16)  # 8 x 2 is no less than 16
        self.assertEqual(traffic.payload_bytes([(1000,)], "power_sgd:4"), 4 * 1000)
        self.assertEqual(traffic.payload_bytes([(1000, 3)], "power_sgd:4"), 4 * 3000)  # at most rank 3

    def test_half_precision_is_half(self):
        self.assertEqual([traffic.payload_bytes([(3, 5)], hook) for hook in ("fp16", "bf16", "noop")], [30, 30, 0])

    def test_a_ring_sends_each_part_twice_but_for_its_own(self):
        # Two phases of n - 1 sends of one n-th.
        for members in (2, 4, 7):
            self.assertAlmostEqual(traffic.ring_share(members), sum([1 / members] * (2 * (members - 1))))

    def test_a_star_sums_up(self):
        star = traffic.star(4)
        self.assertEqual(len(star.hosts), 5)
        sent, received = (sum(both[side] for both in star.traffic.values()) for side in (0, 1))
        self.assertEqual(sent, received)  # what one host sends another receives
        self.assertEqual(star.busiest, 4)
        self.assertEqual({star.address(rank, {"daemon": "x:1"}) for rank in range(4)}, {"x:1"})

    def test_shards_on_the_members_hosts_carry_a_rings_bytes(self):
        shards = traffic.TOPOLOGIES["shards"](4)
        self.assertEqual(set(shards.traffic.values()), {(traffic.ring_share(4), traffic.ring_share(4))})
        self.assertEqual(shards.address(2, {f"shard{i}": f"h{i}:1" for i in range(4)}), "h0:1,h1:1,h2:1,h3:1")

    def test_shards_on_hosts_of_their_own_share_the_stars_bytes(self):
        for count in (2, 4):
            own = traffic.TOPOLOGIES[f"own-{count}"](4)
            self.assertEqual(own.traffic["member0"], (1, 1))
            self.assertEqual(own.traffic["daemon1"], (4 / count, 4 / count))

    def test_leaves_send_for_two_members_what_one_sends(self):
        leaves = traffic.TOPOLOGIES["leaves"](4)
        self.assertEqual(leaves.members[:3], ("member0", "member0", "member1"))
        self.assertEqual(leaves.traffic["member3"], (1, 1))
        self.assertEqual(leaves.traffic["daemon"], (4, 4))
        addresses = {"daemon": "root:1", "leaf1": "unix:/x"}
        self.assertEqual(leaves.address(3, addresses), "unix:/x")
        self.assertEqual(leaves.daemons[2].flags(addresses), ["--upstream", "root:1"])
        both = traffic.TOPOLOGIES["shard-leaves"](2)
        self.assertEqual(both.traffic, traffic.TOPOLOGIES["shards"](2).traffic)
        self.assertEqual(both.daemons[3].flags({"shard0": "a:1", "shard1": "b:1"}), ["--upstream", "a:1,b:1"])

    def test_every_topology_carries_what_it_sends(self):
        for make in traffic.TOPOLOGIES.values():
            topology = make(4)
            self.assertEqual(set(topology.traffic), set(topology.hosts))
            self.assertTrue(math.isclose(*(sum(both[side] for both in topology.traffic.values()) for side in (0, 1))))

    def test_seconds_and_headers(self):
        self.assertEqual(traffic.seconds_on_link(12_500_000, 100e6), 1)
        self.assertEqual(traffic.seconds_on_link(1, None), 0)
        self.assertEqual(traffic.with_headers(1448), 1514)


class ParsingTest(unittest.TestCase):
    def test_counters(self):
        first = network.parse_counters(LINK)
        self.assertEqual(first, network.Counters(2000, 1000, 20, 10))
        self.assertEqual(network.Counters(2500, 1100, 25, 11) - first, network.Counters(500, 100, 5, 1))

    def test_no_counters(self):
        for text in ("", "[]", "[{}]", '[{"stats64":{"rx":{}}}]', "Device does not exist."):
            with self.assertRaisesRegex(network.NetworkError, "ip shows no counters"):
                network.parse_counters(text)

    def test_rates(self):
        self.assertEqual(network.bits_per_second("100mbit"), 1e8)
        self.assertEqual(network.bits_per_second("1.5gbit"), 1.5e9)
        self.assertIsNone(network.bits_per_second("unlimited"))
        for rate in ("100", "mbit", "0mbit", "-1mbit", "1e3mbit", "100Mbit/s", "", "1mbit "):
            with self.assertRaisesRegex(ValueError, "allowed are numbers with kbit"):
                network.bits_per_second(rate)
        self.assertEqual(network.burst_bytes("100mbit"), 12_500)
        self.assertEqual(network.burst_bytes("1mbit"), network.LEAST_BURST)

    def test_settings(self):
        parse = lambda text: traffic.parse_setting(text, network.bits_per_second)  # noqa: E731
        self.assertEqual(parse("100mbit+25ms"), traffic.Setting("100mbit", 25))
        self.assertEqual(parse("unlimited").name, "unlimited")
        for text in ("100mbit+", "100mbit+25", "100mbit+0ms", "100mbit+1001ms", "100mbit+xms", "fast+25ms"):
            with self.assertRaises(ValueError):
                parse(text)

    def test_hooks(self):
        self.assertEqual(traffic.power_sgd_rank("power_sgd:12"), 12)
        self.assertIsNone(traffic.power_sgd_rank("no"))
        for hook in ("power_sgd", "power_sgd:", "power_sgd:0", "power_sgd:-1", "fp8", ""):
            with self.assertRaises(ValueError):
                traffic.payload_bytes([(2, 2)], hook)


class ArgumentsTest(unittest.TestCase):
    def test_a_part(self):
        given = net_bench.arguments_of(["bin", "--rates", "100mbit,1gbit+25ms", "--hooks", "no,fp16"])
        self.assertEqual([setting.name for setting in given.settings], ["100mbit", "1gbit+25ms"])
        self.assertEqual(given.hooks, ["no", "fp16"])
        self.assertEqual(given.topologies, list(traffic.TOPOLOGIES))

    def test_refusals_say_what_is_allowed(self):
        for parse, words, said in (
            (net_bench.arguments_of, ("--rates", "fast"), 'the rate is "fast"; allowed are'),
            (net_bench.arguments_of, ("--hooks", "fp8"), 'the hook is "fp8"; allowed are no, fp16'),
            (net_bench.arguments_of, ("--topologies", "mesh"), 'the topology is "mesh"; allowed are star'),
            (net_bench.arguments_of, ("--members", "1"), "--members is 1; allowed are 2 to 64"),
            (net_bench.arguments_of, ("--compute-ms", "-1"), "--compute-ms is -1.0; allowed are"),
            (convergence_bench.arguments_of, ("--tasks", "chess"), 'the task is "chess"; allowed are digits, language'),
            (convergence_bench.arguments_of, ("--rates", "20"), 'the rate is "20"; allowed are'),
            (convergence_bench.arguments_of, ("--seeds", "0"), "--seeds is 0; allowed are 1 to 100"),
        ):
            self.assertIn(said, refusal(parse, "bin", *words))
        self.assertEqual(refusal(convergence_bench.arguments_of, "bin"), "")


class PlainTcpTest(unittest.TestCase):
    def test_both_send_and_receive(self):
        ours, theirs = socket.socketpair()
        server = threading.Thread(target=plain_tcp.serve, args=(theirs,))
        server.start()
        ours.settimeout(10)
        for count in (1, 3_000_000):
            ours.sendall(plain_tcp.LENGTH.pack(count))
            plain_tcp.exchange(ours, count)
        ours.close()
        server.join(10)
        self.assertFalse(server.is_alive())

    def test_a_peer_that_goes_is_an_error(self):
        ours, theirs = socket.socketpair()
        theirs.close()
        with self.assertRaises(OSError):
            plain_tcp.exchange(ours, 100)


class TableTest(unittest.TestCase):
    def row(self):
        link = {"sent": 1.06e6, "sent_theory": 1e6, "received": 1.07e6, "received_theory": 1e6}
        links = {**{f"member{rank}": dict(link) for rank in range(4)},
                 "daemon": {key: 4 * value for key, value in link.items()}}
        links["member2"]["sent"] = 1.2e6
        return {"rate": "100mbit", "round_trip_ms": 25, "hook": "fp16", "side": "gradwire", "topology": "star",
                "step_s": {"median": 0.5, "min": 0.4, "max": 0.7}, "communication_s": 0.4, "theory_s": 0.32,
                "of_link": 0.8, "links": links}

    def test_a_row(self):
        line = net_bench.table_row(self.row(), traffic.star(4))
        for part in ("100mbit +25 ms", "fp16", "gradwire star", "500.0 [400 - 700]", "400.0", "320", "80 %",
                     "1.20, 1.07 (1.00, 1.00)", "4.24, 4.28 (4.00, 4.00)"):  # the busiest member's
            self.assertIn(part, line)

    def test_columns_stand_below_their_names(self):
        heading, line = net_bench.table_heading(), net_bench.table_row(self.row(), traffic.star(4))
        for name, cell in (("comm. ms", "400.0"), ("theory", "320"), ("of link", "80 %")):
            self.assertEqual(heading.index(f"{name}") + len(name), line.index(cell) + len(cell))

    def test_gloo_and_unlimited_links(self):
        row = {**self.row(), "side": "gloo", "topology": "ring", "rate": "unlimited", "round_trip_ms": 0,
               "theory_s": 0.0, "of_link": None}
        line = net_bench.table_row(row, traffic.star(4))
        self.assertNotIn("%", line)
        self.assertNotIn("4.24", line)  # a ring has no daemon


class CombineTest(unittest.TestCase):
    def test_steps_to_a_target(self):
        self.assertEqual(combine.steps_to([[5, 0.5], [10, 0.97], [15, 0.9]], 0.97, True), 10)
        self.assertEqual(combine.steps_to([[5, 3.0], [10, 2.5]], 2.6, False), 10)
        self.assertIsNone(combine.steps_to([[5, 0.5]], 0.97, True))

    def test_plain_first_steps_count(self):
        self.assertEqual(combine.seconds_until(30, 10, 2.0, 0.1), 22.0)
        self.assertEqual(combine.seconds_until(4, 10, 2.0, 0.1), 8.0)
        self.assertEqual(combine.seconds_until(30, 0, 9.0, 0.1), 3.0)
        self.assertIsNone(combine.seconds_until(None, 10, 2.0, 0.1))

    def test_step_times_leave_out_the_first_of_each_kind(self):
        self.assertEqual(combine.step_times([9, 9, 2, 2, 7, 7, 1, 1, 1], 4), (2, 1))
        self.assertEqual(combine.step_times([9, 9, 1, 1], 0), (1, 1))

    def test_finds_the_rate(self):
        bits = 45e6 * 8
        steps = lambda rate: 0.225 + (bits / network.bits_per_second(rate) if rate != "unlimited" else 0)  # noqa: E731
        rate, reached = combine.find_rate(steps, 0.312)
        self.assertTrue(reached)
        self.assertAlmostEqual(steps(rate), 0.312, delta=0.003)
        self.assertEqual(combine.find_rate(lambda rate: 0.4, 0.312), ("unlimited", False))

    def test_the_table_says_what_was_not_reached(self):
        row = {"task": "digits", "hook": "power_sgd:1", "parameters": 1000, "target": 0.97, "quality_name": "accuracy",
               "final": [0.96, 0.98, 0.99], "steps_to_target": [None, 20, 30], "start_power_sgd": 10,
               "rates": {"20mbit": {"plain_step_s": 2.0, "step_s": 0.1, "to_target_s": [None, 21.0, 22.0]}}}
        line = combine.table([row], ["20mbit"])[-1]
        for part in ("0.980 [0.960 - 0.990]", "25 [20 - 30] (2 of 3)", "100 (plain 2000)",
                     "21.5 [21.0 - 22.0] (2 of 3)"):
            self.assertIn(part, line)
        row["rates"]["20mbit"]["to_target_s"] = [None] * 3
        self.assertIn("not reached", combine.table([row], ["20mbit"])[-1])

    def test_the_papers_ratios(self):
        paper = {"members": 4, "overlap": 0, "rate": "5000mbit", "fp32_s": 0.312,
                 "step_s": {"power_sgd:1": 0.229, "power_sgd:2": 0.239, "power_sgd:4": 0.290}}
        lines = combine.paper_table(paper)
        self.assertIn("0.73    0.73  within", lines[-3])
        self.assertIn("OUTSIDE", lines[-1])


if __name__ == "__main__":
    sys.exit(unittest.main())
