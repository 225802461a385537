"""Lines of Nsight Compute become one row a matrix."""

from benchmarks import counters


def test_the_longest_kernel_of_each_product_counts():
    lines = [
        "==PROF== Connected to process 1",
        '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
    ]
    names = ("gather", "tiles_kernel", "cupy_add", "spmv_kernel", "cupy_add")
    for number, (name, ns) in enumerate(zip(names, (900, 8_000, 100_000, 50, 1), strict=True)):
        lines.append(f'"{number}","1","{name}","{counters.TIME}","ns","{ns:,}.0"')
        lines += [f'"{number}","1","{name}","{metric}","%","{10 * number}.5"' for metric in counters.METRICS.values()]
    rows = counters.counted(lines)
    assert [row["kernel"] for row in rows] == ["tiles_kernel", "spmv_kernel"]
    for row, share in zip(rows, (0.105, 0.305), strict=True):
        assert {row[name] for name in counters.METRICS} == {share}
