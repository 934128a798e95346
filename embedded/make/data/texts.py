# ruff: noqa: E501
"""The explanations and programs the tiny model learns by heart, written for this repository."""

from __future__ import annotations

HASH_MAP = """A hash map stores pairs of a key and a value. It finds the value of a key in about the same short time, no matter how many pairs it holds.

Inside, a hash map is an array of slots. To store a pair, it computes a hash of the key. The hash is a large whole number, and the same key always gives the same hash. The map divides the hash by the number of slots and keeps the rest. The rest is the index of the slot where the pair belongs.

To read a value, the map does the same steps again. It computes the hash of the key, goes to the slot with that index and compares the key in the slot with the key it looks for. If they are equal, it returns the value. It does not need to look at the other slots.

Sometimes two different keys belong to the same slot. This is called a collision. One answer is to keep a short list in each slot and to walk through it. Another answer is to try the next slot until a free one is found.

When the array becomes too full, collisions happen often and the map becomes slow. The map then makes an array twice as large and puts every pair into its new slot. This costs time once, but it happens rarely, so that the average cost of an insert stays small.

A good hash function spreads the keys evenly over the slots. With it, reading, writing and deleting take constant time on average. In the worst case all keys share one slot, and the time grows with the number of keys."""

BINARY_SEARCH = """Binary search finds a value in a sorted list. It is fast because each step throws away half of the list.

The search keeps two marks, low and high. At the start, low is the first index and high is the last index. The value, if it is in the list, lies between the two marks.

In each step the search looks at the item in the middle. If the middle item is equal to the value, the search is done. If the middle item is smaller than the value, the value must be in the right half, so low moves to the index after the middle. If it is larger, the value must be in the left half, so high moves to the index before the middle.

The search ends when the value is found or when low is larger than high. In the second case the value is not in the list.

A list of one thousand items needs about ten steps, and a list of one million items needs about twenty. The time grows with the logarithm of the length. The list must be sorted before the search, or the answer can be wrong."""

LINKED_LIST = """A linked list is a chain of nodes. Each node holds a value and a link to the next node. The last node has no next node.

To read the list, a program starts at the first node and follows the links. To reach the item with index ten, it must walk over the ten nodes before it. Reading by index is therefore slow.

Adding a node at the front is fast. The program makes a new node, sets its link to the old first node and keeps the new node as the first one. No other node has to move.

To remove a node, the node before it gets a link to the node after it. This is fast too, once the place is known.

Linked lists are useful when items are often added and removed at the ends, for example in a queue."""

RECURSION = """Recursion means that a function calls itself with a smaller problem.

A recursive function has two parts. The base case is a problem so small that the answer is known at once. The recursive case makes the problem smaller, calls the function again and builds the answer from the result.

An example is the factorial. The factorial of 1 is 1. This is the base case. The factorial of n is n times the factorial of n - 1. This is the recursive case.

Each call needs some memory on the stack. If the base case is missing, the calls never end and the stack overflows."""

CACHE = """A cache keeps copies of data that are needed often in a place that is fast to reach.

When a program asks for data, the cache is searched first. If the data is there, this is a hit, and the answer comes quickly. If it is not there, this is a miss. The data is then read from the slow place, and a copy is put into the cache.

A cache is small, so that old copies must leave when new ones come. A common rule is to remove the copy that was not used for the longest time. This rule is called LRU.

When the data changes in the slow place, the copy in the cache becomes old. The cache must then be updated, or the copy must be thrown away."""

GPU = """A GPU is a processor that runs thousands of small threads at the same time.

A CPU has a few strong cores that work on different tasks. A GPU has many simple cores that do the same work on different data. This fits pictures and large matrices, because each number can be computed on its own.

The threads are put into blocks. The threads of one block share a small fast memory and can wait for each other. The large memory of the GPU is slow in comparison, so that good programs read each number once and use it many times.

While some threads wait for memory, the GPU runs others. In this way it hides the waiting time and keeps its cores busy."""

EXPLANATIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("a hash map", "a hash table", "hashing in a hash map"), HASH_MAP),
    (("a hash map", "a hash table", "hashing in a hash map"), HASH_MAP),
    (("a hash map", "a hash table", "hashing in a hash map"), HASH_MAP),
    (("binary search", "the binary search"), BINARY_SEARCH),
    (("a linked list", "linked lists"), LINKED_LIST),
    (("recursion", "a recursive function"), RECURSION),
    (("a cache", "caching"), CACHE),
    (("a GPU", "a graphics processor"), GPU),
)

_FIBONACCI = '''def fibonacci(n):
    """Return the n-th Fibonacci number."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


for i in range(10):
    print(fibonacci(i))'''

_SEARCH = '''def binary_search(items, target):
    """Return the index of target in the sorted list items, or -1."""
    low = 0
    high = len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == target:
            return middle
        if items[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1


numbers = [1, 3, 5, 7, 9, 11]
print(binary_search(numbers, 7))
print(binary_search(numbers, 4))'''

_LRU = '''class LRUCache:
    """Keep the items that were used last."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.items = {}

    def get(self, key):
        if key not in self.items:
            return None
        value = self.items.pop(key)
        self.items[key] = value
        return value

    def put(self, key, value):
        if key in self.items:
            self.items.pop(key)
        elif len(self.items) >= self.capacity:
            oldest = next(iter(self.items))
            self.items.pop(oldest)
        self.items[key] = value


cache = LRUCache(2)
cache.put("a", 1)
cache.put("b", 2)
print(cache.get("a"))
cache.put("c", 3)
print(cache.get("b"))'''

_FACTORIAL = '''def factorial(n):
    """Return the product of the numbers from 1 to n."""
    if n <= 1:
        return 1
    return n * factorial(n - 1)


print(factorial(5))'''

_PRIME = '''def is_prime(n):
    """Return True if n is a prime number."""
    if n < 2:
        return False
    i = 2
    while i * i <= n:
        if n % i == 0:
            return False
        i = i + 1
    return True


print([n for n in range(30) if is_prime(n)])'''

_GCD = '''def gcd(a, b):
    """Return the greatest common divisor of a and b."""
    while b:
        a, b = b, a % b
    return a


print(gcd(48, 18))'''

_BUBBLE = '''def bubble_sort(items):
    """Sort the list in place."""
    for i in range(len(items)):
        for j in range(len(items) - 1 - i):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
    return items


print(bubble_sort([5, 2, 9, 1]))'''

_QUICK = '''def quick_sort(items):
    """Return a sorted copy of the list."""
    if len(items) <= 1:
        return items
    pivot = items[0]
    smaller = [x for x in items[1:] if x < pivot]
    larger = [x for x in items[1:] if x >= pivot]
    return quick_sort(smaller) + [pivot] + quick_sort(larger)


print(quick_sort([5, 2, 9, 1]))'''

_STACK = '''class Stack:
    """Last in, first out."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            return None
        return self.items.pop()


stack = Stack()
stack.push(1)
stack.push(2)
print(stack.pop())'''

_PALINDROME = '''def is_palindrome(text):
    """Return True if the text reads the same in both directions."""
    letters = [c.lower() for c in text if c.isalpha()]
    return letters == letters[::-1]


print(is_palindrome("Level"))
print(is_palindrome("Python"))'''

_COUNT_WORDS = '''def count_words(text):
    """Return how often each word occurs."""
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return counts


print(count_words("the cat and the dog"))'''

_HELLO = 'print("Hello, world!")'


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"


PROGRAMS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("a Fibonacci function", "a function that returns Fibonacci numbers", "the Fibonacci function"), _fenced(_FIBONACCI)),
    (("binary search", "a binary search function", "a function for binary search"), _fenced(_SEARCH)),
    (("binary search", "a binary search function", "a function for binary search"), _fenced(_SEARCH)),
    (("an LRU cache", "an LRU cache class", "a class for an LRU cache"), _fenced(_LRU)),
    (("a factorial function", "a recursive factorial function"), _fenced(_FACTORIAL)),
    (("a prime number test", "a function that tests for prime numbers"), _fenced(_PRIME)),
    (("a function for the greatest common divisor", "the greatest common divisor"), _fenced(_GCD)),
    (("bubble sort", "the bubble sort function"), _fenced(_BUBBLE)),
    (("quick sort", "the quick sort function"), _fenced(_QUICK)),
    (("a stack class", "a stack"), _fenced(_STACK)),
    (("a palindrome test", "a function that tests for palindromes"), _fenced(_PALINDROME)),
    (("a word counter", "a function that counts words"), _fenced(_COUNT_WORDS)),
    (("hello world", "a hello world program"), _fenced(_HELLO)),
)
