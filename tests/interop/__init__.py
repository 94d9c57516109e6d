"""Clients of other languages through the sidecar.

Every client is one program and does the same, with the library's defaults where there are any:

    PROGRAM BOOTSTRAP TOPIC GROUP CLIENT_ID PARTITIONS < LINES

It creates TOPIC with PARTITIONS partitions where there is none, finds it in the list of topics and describes it;
produces each line (``key<TAB>value``, ASCII), an equal share with each codec it has, all acknowledged; reads them back
as a member of GROUP from the start, commits, and asks for the group's committed offsets. Every request carries
CLIENT_ID. With TLS_CA in its environment, a file in PEM, it uses TLS and trusts that CA. It prints one line of JSON
(``clients.Report``), and ends with another exit code than 0 where anything fails.
"""
