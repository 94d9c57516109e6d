# Part of otlp_writer.pyx: reads JSON without white space, and never beyond its end.

cdef struct Text:  # JSON as it stands in the event
    const char *at
    Py_ssize_t size

cdef struct Member:
    Text key  # without its quotes
    Text value

cdef struct Elements:  # of an array of objects
    const char *at
    const char *end


cdef void _begin(Elements *elements, const Text *array) noexcept nogil:
    elements.at, elements.end = array.at, array.at + array.size


cdef bint _next_element(Elements *elements) noexcept nogil:
    """Step to the next object of an array, from behind the one before it. Return whether there is one."""
    if elements.at + 1 >= elements.end or elements.at[1] != b"{":
        return False
    elements.at += 1
    return True


cdef bint _next_field(Elements *elements, Member *member) noexcept nogil:
    """Read the next member of the present object. Return whether there is one; if not, step behind the object."""
    cdef const char *after
    if elements.at[0] == b"}":
        elements.at += 1
        return False
    after = _next_member(elements.at + 1, elements.end, member)
    if after == NULL:
        elements.at = elements.end
        return False
    elements.at = after
    return True


cdef const char *_next_member(const char *at, const char *end, Member *member) noexcept nogil:
    """Read ``"key":value``. Return the place behind it, which is before ``end``, or NULL where it is not whole."""
    cdef const char *after
    if at >= end or at[0] != b'"':
        return NULL
    after = _end_of_string(at, end)
    if after == NULL or after >= end or after[0] != b":":
        return NULL
    member.key.at, member.key.size = at + 1, after - at - 2
    member.value.at = after + 1
    at = _end_of_value(after + 1, end)
    if at == NULL or at >= end or at == after + 1:
        return NULL
    member.value.size = at - member.value.at
    return at


cdef const char *_end_of_value(const char *at, const char *end) noexcept nogil:
    """Return the place behind the value at ``at``, or NULL where it is not whole."""
    cdef Py_ssize_t depth = 0
    if at >= end:
        return NULL
    if at[0] == b'"':
        return _end_of_string(at, end)
    if at[0] != b"{" and at[0] != b"[":
        while at < end and at[0] != b"," and at[0] != b"]" and at[0] != b"}":
            at += 1
        return at
    while at < end:
        if at[0] == b'"':
            at = _end_of_string(at, end)
            if at == NULL:
                return NULL
            continue
        if at[0] == b"{" or at[0] == b"[":
            depth += 1
        elif at[0] == b"}" or at[0] == b"]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return NULL


cdef const char *_end_of_string(const char *at, const char *end) noexcept nogil:
    at += 1
    while at < end:
        if at[0] == b'"':
            return at + 1
        at += 2 if at[0] == b"\\" else 1
    return NULL


cdef inline bint _is(const Text *text, const char *expected) noexcept nogil:
    return text.size == <Py_ssize_t>strlen(expected) and memcmp(text.at, expected, text.size) == 0


cdef inline bint _is_content(const Text *text, const char *expected) noexcept nogil:
    """Whether a string, in its quotes, is ``expected``."""
    cdef Py_ssize_t size = strlen(expected)
    return text.size == size + 2 and memcmp(text.at + 1, expected, size) == 0


cdef inline bint _are_same(const Text *one, const Text *other) noexcept nogil:
    return one.size == other.size and memcmp(one.at, other.at, one.size) == 0


cdef int64_t _number(const Text *text) noexcept nogil:
    cdef Py_ssize_t n
    cdef int64_t number = 0
    cdef bint negative = text.size > 0 and text.at[0] == b"-"
    for n in range(negative, min(text.size, <Py_ssize_t>18)):
        number = 10 * number + text.at[n] - 48
    return -number if negative else number
