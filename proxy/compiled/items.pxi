# A part of walk.pyx: what a request is about, and the error codes of the items of a response, by a program made from
# the schema of the message (``proxy.core.request_resources``, ``proxy.core.response_errors``).

cdef enum:
    KEYS = 128
    VERSIONS = 32
    FAILURE = 0
    RETRIABLE = 1
    PROTOCOL = 2

cdef enum Op:
    OP_END
    OP_SKIP
    OP_TEXT
    OP_BYTES
    OP_NAME
    OP_TOPIC_ID
    OP_PARTITION
    OP_RESOURCE_TYPE
    OP_ERROR
    OP_ARRAY
    OP_NEXT
    OP_NUMBERS
    OP_TAGS
    OP_OPTIONAL
    OP_RESOURCE
    OP_FIELD
    OP_GENERATION
    OP_OFFSET
    OP_COMMIT
    OP_VALIDATE_ONLY
    OP_NODE
    OP_CHILD
    OP_ENTITY_TYPE

if instructions.MAX_NAME != MAX_NAME or instructions.MAX_DEPTH != MAX_DEPTH or len(instructions.FIELDS) != MAX_FIELDS:
    raise AssertionError("the bounds of instructions differ")

cdef Instruction *PROGRAMS[2 * KEYS * VERSIONS]  # of requests, of responses
cdef uint8_t STATES[2 * KEYS * VERSIONS]  # 0: not made yet; 1: a program; 2: one of a flexible version; 3: none
memset(PROGRAMS, 0, sizeof(PROGRAMS))
memset(STATES, 0, sizeof(STATES))

cdef uint8_t CLASSES[256]
memset(CLASSES, FAILURE, sizeof(CLASSES))
for _code in response_errors.RETRIABLE:
    CLASSES[<int>_code] = RETRIABLE
for _code in response_errors.PROTOCOL:
    CLASSES[<int>_code] = PROTOCOL

cdef int64_t[3] MOST = [
    response_errors.MAX_KEPT_FAILURES, response_errors.MAX_KEPT_STEPS, response_errors.MAX_KEPT_STEPS,
]
cdef uint8_t NO_ID[16]
memset(NO_ID, 0, 16)
cdef int64_t MAX_RESOURCES = request_resources.MAX_KEPT_RESOURCES
cdef int64_t MAX_COMMITS = request_resources.MAX_KEPT_COMMITS
cdef tuple TYPES = instructions.RESOURCE_TYPES
cdef int32_t CLIENT_QUOTA = TYPES.index("client_quota")
cdef dict ENTITY_TYPES = {one.encode(): TYPES.index(one) for one in ("user", "client-id", "ip")}
cdef int32_t TYPES_BY_NUMBER[2][128]  # of configs, of ACLs
memset(TYPES_BY_NUMBER, 0, sizeof(TYPES_BY_NUMBER))
for _code, _type in instructions.CONFIG_TYPES.items():
    TYPES_BY_NUMBER[0][<int>_code] = TYPES.index(_type)
for _code, _type in instructions.ACL_TYPES.items():
    TYPES_BY_NUMBER[1][<int>_code] = TYPES.index(_type)

cdef int64_t SIZES[23]  # bytes of the fields of fixed size, by instruction
memset(SIZES, 0, sizeof(SIZES))
SIZES[<int>OP_ERROR], SIZES[<int>OP_PARTITION], SIZES[<int>OP_TOPIC_ID], SIZES[<int>OP_RESOURCE_TYPE] = 2, 4, 16, 1
SIZES[<int>OP_GENERATION], SIZES[<int>OP_OFFSET], SIZES[<int>OP_VALIDATE_ONLY], SIZES[<int>OP_NODE] = 4, 8, 1, 4


cdef inline int place_of(int key, int version, bint response) noexcept:
    return (KEYS if response else 0) * VERSIONS + key * VERSIONS + version


cdef inline bint has_program(int key, int version, bint response) noexcept:
    """Whether requests of this api and version name resources, or their responses have error codes of items."""
    cdef uint8_t state
    if not 0 <= key < KEYS or not 0 <= version < VERSIONS:
        return False
    state = STATES[place_of(key, version, response)]
    if not state:
        state = make_program(key, version, response)
    return state < 3


cdef uint8_t make_program(int key, int version, bint response) noexcept:
    """Make the program, with the first message that could need it."""
    cdef Py_ssize_t at
    cdef Instruction *made = NULL
    cdef int place = place_of(key, version, response)
    try:
        rows = (response_errors if response else request_resources).program(key, version)
        if rows is not None:
            made = <Instruction *>PyMem_Malloc(len(rows) * sizeof(Instruction))
            if made == NULL:
                raise MemoryError
            for at in range(len(rows)):
                made[at].op, made[at].argument, made[at].target = rows[at]
    except Exception:  # it costs the resources or the errors of this api
        PyMem_Free(made)
        made = NULL
        rows = ()
    PROGRAMS[place] = made
    STATES[place] = 3 if made == NULL else 1 + made[len(rows) - 1].argument
    return STATES[place]


cdef ItemWalk *begin_items(int key, int version, bint response) except NULL:
    if not has_program(key, version, response):
        raise ValueError(f"api key {key}, version {version}, has no program")
    cdef ItemWalk *items = <ItemWalk *>PyMem_Malloc(sizeof(ItemWalk))
    if items == NULL:
        raise MemoryError
    items.program = PROGRAMS[place_of(key, version, response)]
    items.at = items.depth = 0
    items.in_tags = items.validate_only = False
    items.error_code = 0
    items.generation = -1
    items.resources = items.commits = 0
    memset(items.counts, 0, sizeof(items.counts))
    memset(items.kept, 0, sizeof(items.kept))
    memset(items.fields, 0, sizeof(items.fields))
    memset(items.repeated, 0, sizeof(items.repeated))
    items.found = items.found_commits = NULL
    items.levels[0].kind = items.levels[0].start = 0
    items.levels[0].index = 0
    begin_element(&items.levels[0])
    return items


cdef inline void begin_element(Level *level) noexcept:
    level.error_code = 0
    level.name_size = -1
    level.has_id = level.has_partition = False


cdef void free_items(ItemWalk *items) noexcept:
    cdef int at
    if items == NULL:
        return
    Py_XDECREF(items.found)
    Py_XDECREF(items.found_commits)
    for at in range(MAX_FIELDS):
        Py_XDECREF(items.fields[at])
    PyMem_Free(items)


cdef int advance_items(Walk *walk) except -1:
    """As ``advance``. An element is one instruction."""
    cdef ItemWalk *items = walk.items
    cdef const Instruction *now
    cdef Level *level
    cdef int64_t mark, size
    if walk.step == END:
        return 1
    while True:
        now = &items.program[items.at]
        level = &items.levels[items.depth]
        mark = walk.pos
        if now.op == OP_SKIP:
            walk.pos += now.argument
        elif now.op == OP_TEXT or now.op == OP_BYTES:
            if not text_size(walk, &size) if now.op == OP_TEXT else not length(walk, &size):
                walk.pos = mark
                return 0
            if size > 0:
                walk.pos += size
        elif now.op == OP_NUMBERS:
            if not length(walk, &size):
                walk.pos = mark
                return 0
            if size > 0:
                walk.pos += size * now.argument
        elif now.op == OP_ARRAY:
            if not length(walk, &size):
                walk.pos = mark
                return 0
            if size <= 0:
                items.at = now.target
                continue
            items.depth += 1
            level = &items.levels[items.depth]
            level.left = size
            level.index = 0
            level.start = items.at + 1
            level.kind = now.argument
            begin_element(level)
        elif now.op == OP_NEXT:
            if level.error_code:
                keep_error(items)
            level.left -= 1
            if level.left:
                level.index += 1
                begin_element(level)
                items.at = level.start
                if walk.pos > walk.size:  # a declared number of elements costs nothing before their bytes are there
                    return 0
                continue
            items.depth -= 1
        elif now.op == OP_TAGS:
            if not read_tags(walk, items, level, now.argument):
                return 0
        elif now.op == OP_OPTIONAL:
            if walk.pos >= walk.size:
                return 0
            walk.pos += 1
            if walk.data[walk.pos - 1] > 127:
                items.at = now.target
                continue
        elif now.op == OP_END:
            items.error_code = level.error_code
            walk.step = END
            return 1
        elif not read_field(walk, items, level, now):
            walk.pos = mark
            return 0
        items.at += 1


cdef int read_tags(Walk *walk, ItemWalk *items, Level *level, int32_t error_tag) except -1:
    """Pass over tagged fields, but for the one that is an error code."""
    cdef int64_t mark
    cdef uint64_t number, size
    if not items.in_tags:
        if walk.pos < walk.size and walk.data[walk.pos] == 0:
            walk.pos += 1
            return 1
        mark = walk.pos
        if not uvarint(walk, &items.tags):
            walk.pos = mark
            return 0
        items.in_tags = True
    while items.tags:
        mark = walk.pos
        if not uvarint(walk, &number) or not uvarint(walk, &size):
            walk.pos = mark
            return 0
        if <int64_t>number == error_tag:
            if size != 2:
                return malformed(walk.body.kind, f"an error code of {size} bytes")
            if walk.pos + 2 > walk.size:
                walk.pos = mark
                return 0
            if not level.error_code:
                level.error_code = int16_at(walk.data + walk.pos)
        walk.pos += <int64_t>size
        items.tags -= 1
    items.in_tags = False
    return 1


cdef int read_field(Walk *walk, ItemWalk *items, Level *level, const Instruction *now) except -1:
    """Do an instruction about one resource or item. Where it returns 0, ``walk.pos`` may have moved."""
    cdef const uint8_t *start = walk.data + walk.pos
    cdef int64_t size
    if now.op == OP_RESOURCE:
        if now.argument:
            level.kind = now.argument
        return keep_resource(items, items.depth, level.kind, name_of(level), id_of(level))
    if now.op == OP_COMMIT:
        return keep_commit(items, level)
    if now.op == OP_NAME or now.op == OP_FIELD or now.op == OP_CHILD or now.op == OP_ENTITY_TYPE:
        if not text(walk, &start, &size):
            return 0
        if now.op == OP_CHILD:
            return keep_child(items, now.argument, start, size)
        if now.op == OP_ENTITY_TYPE:
            level.kind = ENTITY_TYPES.get((<const char *>start)[:size], CLIENT_QUOTA) if size > 0 else CLIENT_QUOTA
            return 1
        size = min(size, <int64_t>MAX_NAME)
        if now.op == OP_FIELD:
            set_field(items, now.argument, start, size)
            if items.program[items.at + 1].op != OP_RESOURCE:
                return 1
        level.name_size = -1 if size < 0 else <int32_t>size
        if size > 0:
            memcpy(level.name, start, size)
        return 1
    size = SIZES[now.op]
    walk.pos += size
    if walk.pos > walk.size:
        return 0
    if now.op == OP_ERROR:
        if not level.error_code:
            level.error_code = int16_at(start)
    elif now.op == OP_PARTITION:
        level.partition = int32_at(start)
        level.has_partition = True
    elif now.op == OP_TOPIC_ID:
        memcpy(level.topic_id, start, 16)
        level.has_id = True
    elif now.op == OP_RESOURCE_TYPE:
        level.kind = TYPES_BY_NUMBER[now.argument][start[0] & 127]
    elif now.op == OP_GENERATION:
        items.generation = int32_at(start)
    elif now.op == OP_OFFSET:
        level.offset = int64_at(start)
    elif now.op == OP_VALIDATE_ONLY:
        items.validate_only = start[0] != 0
    else:  # OP_NODE
        level.kind = now.argument
        return keep_resource(items, items.depth, now.argument, b"%d" % int32_at(start), None)
    return 1


cdef inline int text_size(Walk *walk, int64_t *size) except -1:
    """The length of a string, −1 for null; the string itself stays unread."""
    if walk.flexible:
        if not length(walk, size):
            return 0
        return 1 if size[0] <= MAX_STRING else malformed(walk.body.kind, f"a string of {size[0]} bytes")
    if walk.pos + 2 > walk.size:
        return 0
    size[0] = int16_at(walk.data + walk.pos)
    walk.pos += 2
    return 1 if size[0] >= -1 else malformed(walk.body.kind, f"a length of {size[0]}")


cdef int keep_error(ItemWalk *items) except -1:
    """Count the error of the current element, and keep it where there is room."""
    cdef Level *own = &items.levels[items.depth]
    cdef Level *named = own
    cdef Level *parent
    cdef int depth = items.depth
    cdef int kind = CLASSES[own.error_code] if 0 <= own.error_code < 256 else FAILURE
    cdef list found
    items.counts[kind] += 1
    if items.kept[kind] >= MOST[kind]:
        return 0
    items.kept[kind] += 1
    while depth > 1 and named.name_size < 0 and not named.has_id:  # a partition: the topic is around it
        depth -= 1
        named = &items.levels[depth]
    if named.name_size < 0 and not named.has_id:
        named = own
        depth = items.depth
    parent = NULL
    while depth > 1:
        depth -= 1
        if items.levels[depth].name_size >= 0:
            parent = &items.levels[depth]
            break
    if items.found == NULL:
        found = []
        Py_INCREF(found)
        items.found = <PyObject *>found
    (<list>items.found).append(
        ItemErrorFacts(
            own.error_code,
            TYPES[named.kind],
            name_of(named),
            id_of(named),
            own.partition if own.has_partition else -1,
            own.index,
            TYPES[parent.kind] if parent != NULL else None,
            name_of(parent) if parent != NULL else None,
        )
    )
    return 0


cdef object id_of(const Level *level):
    """None too for the id of zeros that stands where there is a name alone."""
    if not level.has_id or level.name_size >= 0 and not memcmp(level.topic_id, NO_ID, 16):
        return None
    return (<const char *>level.topic_id)[:16]


cdef object name_of(const Level *level):
    return None if level.name_size < 0 else (<const char *>level.name)[:level.name_size]


cdef Level *parent_of(ItemWalk *items, int depth) noexcept:
    """The nearest level around ``depth`` that has a name, or NULL."""
    while depth > 0:
        depth -= 1
        if items.levels[depth].name_size >= 0:
            return &items.levels[depth]
    return NULL


cdef int keep_resource(ItemWalk *items, int depth, int32_t kind, object name, object topic_id) except -1:
    """Count a resource that belongs to what is around ``depth``, and keep it where there is room. Returns 1."""
    cdef Level *parent
    cdef list found
    items.resources += 1
    if items.resources > MAX_RESOURCES:
        return 1
    parent = parent_of(items, depth)
    if items.found == NULL:
        found = []
        Py_INCREF(found)
        items.found = <PyObject *>found
    (<list>items.found).append(
        RequestResource(
            TYPES[kind],
            name,
            topic_id,
            items.levels[min(items.depth, 1)].index,
            TYPES[parent.kind] if parent != NULL else None,
            name_of(parent) if parent != NULL else None,
        )
    )
    return 1


cdef int keep_child(ItemWalk *items, int32_t kind, const uint8_t *start, int64_t size) except -1:
    """Keep a resource that belongs to the current one; none for null. Returns 1."""
    if size < 0:
        return 1
    size = min(size, <int64_t>MAX_NAME)
    return keep_resource(items, items.depth + 1, kind, (<const char *>start)[:size], None)


cdef int keep_commit(ItemWalk *items, const Level *level) except -1:
    """Count a committed offset of the topic around the current partition, and keep it where there is room. Returns 1."""
    cdef Level *topic = &items.levels[items.depth - 1]
    cdef list found
    items.commits += 1
    if items.commits > MAX_COMMITS:
        return 1
    if items.found_commits == NULL:
        found = []
        Py_INCREF(found)
        items.found_commits = <PyObject *>found
    name = name_of(topic)
    (<list>items.found_commits).append(
        CommittedOffset(id_of(topic) if name is None else name, name is None, level.partition, level.offset)
    )
    return 1


cdef int set_field(ItemWalk *items, int32_t field, const uint8_t *start, int64_t size) except -1:
    """Keep a text of the whole request. One that comes again, with another value, is None. Returns 1."""
    cdef bytes value
    if size < 0 or items.repeated[field]:
        return 1
    value = (<const char *>start)[:size]
    if items.fields[field] == NULL:
        Py_INCREF(value)
        items.fields[field] = <PyObject *>value
    elif <bytes>items.fields[field] != value:
        items.repeated[field] = True
    return 1


cdef object field_of(const ItemWalk *items, int32_t field):
    if items.fields[field] == NULL or items.repeated[field]:
        return None
    return <object>items.fields[field]


cdef int64_t hand_over(Walk *walk, Exchange exchange) except -1:
    """Give the exchange what was found. Returns the bytes that it is charged with."""
    cdef ItemWalk *items = walk.items
    if walk.body.kind == REQUEST_RESOURCES:
        exchange.resources = RequestResources(
            () if items.found == NULL else tuple(<list>items.found),
            items.resources,
            () if items.found_commits == NULL else tuple(<list>items.found_commits),
            items.commits,
            field_of(items, 0),
            field_of(items, 1),
            field_of(items, 2),
            field_of(items, 3),
            items.generation,
            items.validate_only,
        )
        return size_of_items(items)
    if items.error_code:
        exchange.error_code = items.error_code
    if items.found == NULL:
        return 0
    exchange.item_errors = ItemErrors(
        tuple(<list>items.found), items.counts[FAILURE], items.counts[RETRIABLE], items.counts[PROTOCOL]
    )
    return size_of_items(items)


cdef inline int64_t size_of_items(const ItemWalk *items) noexcept:
    cdef int64_t kept = items.kept[FAILURE] + items.kept[RETRIABLE] + items.kept[PROTOCOL]
    cdef int at
    kept += min(items.resources, MAX_RESOURCES) + min(items.commits, MAX_COMMITS)
    for at in range(MAX_FIELDS):
        kept += items.fields[at] != NULL
    return (PARTITION_BYTES + 2 * MAX_NAME) * kept
